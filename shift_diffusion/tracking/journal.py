"""The local record of one run: a folder with `events.jsonl` and copies of its artifacts.

A stage only ever writes here, one appended line per event, so no server can slow or stop it. `sending.py` carries the
events to MLflow, now or after the process is gone. Every event may be applied twice with the same result: it carries
its own time, and MLflow drops a metric that it already has.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout


def journal_root(project_root: Path) -> Path:
    """`<project root>/.mlflow`, or a folder of the user's in the temporary directory where the project is read-only."""
    folder = project_root / ".mlflow"
    try:
        folder.mkdir(exist_ok=True)
        probe = folder / f".probe-{os.getpid()}-{threading.get_ident()}"
        probe.touch()
        probe.unlink(missing_ok=True)
    except OSError:
        folder = Path(tempfile.gettempdir()) / f"shift-diffusion-tracking-{os.getuid() if hasattr(os, 'getuid') else 0}"
        folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def now_ms() -> int:
    return int(time.time() * 1000)


class Journal:
    """Append-only list of events of one run. Writing is safe from several threads; one process reads."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.events_file = folder / "events.jsonl"
        self._sent_file = folder / "sent.json"
        self._lock = threading.Lock()
        self._artifacts = 0

    @classmethod
    def create(cls, root: Path, name: str) -> Journal:
        folder = root / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}-{os.getpid()}-{secrets.token_hex(3)}"
        (folder / "artifacts").mkdir(parents=True)
        return cls(folder)

    @property
    def key(self) -> str:
        return self.folder.name

    def append(self, kind: str, **content: Any) -> None:
        line = json.dumps({"kind": kind, "time": now_ms()} | content, default=str) + "\n"
        with self._lock, open(self.events_file, "a", encoding="utf-8") as file:
            file.write(line)

    def keep_file(self, path: str | Path) -> str:
        """Copies a file or folder aside, as DVC or the next stage may replace it; returns the copy's relative path."""
        source = Path(path)
        with self._lock:
            self._artifacts += 1
            slot = self.folder / "artifacts" / f"{self._artifacts:04d}"
        slot.mkdir()
        if source.is_dir():
            shutil.copytree(source, slot / source.name)
        else:
            shutil.copyfile(source, slot / source.name)
        return str((slot / source.name).relative_to(self.folder))

    def keep_text(self, name: str, text: str) -> str:
        with self._lock:
            self._artifacts += 1
            slot = self.folder / "artifacts" / f"{self._artifacts:04d}"
        slot.mkdir()
        (slot / name).write_text(text, encoding="utf-8")
        return str((slot / name).relative_to(self.folder))

    def read(self, offset: int = 0) -> Iterator[tuple[int, dict]]:
        """Yields (offset after the event, event); stops before a line that isn't finished (a write cut by kill -9)."""
        try:
            with open(self.events_file, "rb") as file:
                file.seek(offset)
                for line in file:
                    if not line.endswith(b"\n"):
                        return
                    offset += len(line)
                    yield offset, _parse(line)
        except FileNotFoundError:
            return

    def first(self) -> dict | None:
        return next((event for _, event in self.read()), None)

    @property
    def sent(self) -> dict:
        """What MLflow has: `offset` in the events file, `run_id`, `parent_id`, `artifacts` that failed for good."""
        try:
            return json.loads(self._sent_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {"offset": 0}

    def set_sent(self, state: dict) -> None:
        temporary = self._sent_file.with_suffix(".tmp")
        temporary.write_text(json.dumps(state), encoding="utf-8")
        os.replace(temporary, self._sent_file)

    def unsent_events(self) -> int:
        return sum(1 for _ in self.read(self.sent["offset"]))

    def try_lock(self) -> FileLock | None:
        """The right to send this journal; None while another thread or process has it."""
        lock = FileLock(str(self.folder) + ".lock")
        try:
            lock.acquire(timeout=0)
        except (Timeout, OSError):
            return None
        return lock

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        Path(str(self.folder) + ".lock").unlink(missing_ok=True)


def _parse(line: bytes) -> dict:
    try:
        event = json.loads(line)
        return event if isinstance(event, dict) else {"kind": "unreadable"}
    except ValueError:
        return {"kind": "unreadable"}


def journals(root: Path) -> list[Journal]:
    """All journals of a project, oldest first."""
    if not root.is_dir():
        return []
    return [Journal(folder) for folder in sorted(root.iterdir()) if (folder / "events.jsonl").is_file()]
