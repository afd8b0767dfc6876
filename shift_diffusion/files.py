"""Writing files so that nothing is ever half there: a temporary name first, then one rename."""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def write_bytes_atomic(path: str | Path, data: bytes) -> None:
    """Writes `data` to `path` so that readers see the old file or the whole new one, also after a crash."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())  # mkstemp gives 0600: others could not read a shared project
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current


def write_text_atomic(path: str | Path, text: str) -> None:
    write_bytes_atomic(path, text.encode("utf-8"))


def write_json(path: str | Path, content: Any) -> None:
    """Writes strict JSON with sorted keys.

    Raises:
        ValueError: when a number is NaN or infinite (readers of metrics can't take them), naming its key.
    """
    _refuse_non_finite(content, str(path))
    write_text_atomic(path, json.dumps(content, indent=2, sort_keys=True, allow_nan=False, ensure_ascii=False) + "\n")


def _refuse_non_finite(content: Any, where: str) -> None:
    if isinstance(content, float) and not math.isfinite(content):
        raise ValueError(f"{where}: {content} is not a finite number")
    if isinstance(content, dict):
        for key, value in content.items():
            _refuse_non_finite(value, f"{where}: {key}")
    elif isinstance(content, (list, tuple)):
        for index, value in enumerate(content):
            _refuse_non_finite(value, f"{where}[{index}]")


def read_json(path: str | Path) -> Any:
    """Reads one JSON file; the error of a missing or broken one names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: not valid JSON: {error}") from error


@contextmanager
def new_folder(path: str | Path) -> Iterator[Path]:
    """Yields a temporary sibling folder that takes the place of `path` when the block ends without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
    os.chmod(temporary, 0o777 & ~_umask())
    try:
        yield temporary
        if path.exists():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
