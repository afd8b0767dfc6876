"""A git worktree in which a past run is made again, with the project's DVC cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flows.rerun_record import Record
from shift_diffusion.config import ConfigError
from shift_diffusion.tracking.record import git_state


def command(arguments: list[str], cwd: Path, data: bytes | None = None, env: dict | None = None) -> str:
    """Output of a command. Raises ConfigError with the command's own words when it fails."""
    done = subprocess.run(arguments, cwd=cwd, input=data, capture_output=True, env={**os.environ, **(env or {})})
    if done.returncode:
        words = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
        raise ConfigError([f"`{' '.join(arguments)}` failed: {words}"])
    return done.stdout.decode(errors="replace")


@contextmanager
def worktree(root: Path, folder: Path, record: Record, code: str | None, keep: bool) -> Iterator[Path]:
    """Yields the project in the new worktree `folder`, with the record's code, parameters, dvc.lock and small reports.

    Args:
        code: None = the code of the record; "." = this working tree with its uncommitted changes; else a git revision.
        keep: leave the folder for the user.

    Raises: ConfigError when the commit is gone or the patch doesn't apply.
    """
    commit, patch = _code(root, record, code)
    prefix = command(
        ["git", "rev-parse", "--show-prefix"], root
    ).strip()  # the project may lie below the repository's root
    try:
        command(["git", "worktree", "add", "--detach", "--force", str(folder), commit], root)
        if patch:
            command(["git", "apply", "--binary", "--whitespace=nowarn", "-"], folder, patch)
        _restore(root, folder / prefix, record)
        yield folder / prefix
    finally:
        if not keep:
            subprocess.run(["git", "worktree", "remove", "--force", str(folder)], cwd=root, capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)
            subprocess.run(["git", "worktree", "prune"], cwd=root, capture_output=True)


def _code(root: Path, record: Record, code: str | None) -> tuple[str, bytes]:
    if code is None:
        return record.commit, record.patch
    if code == ".":
        state = git_state(root)
        return state["commit"], state["patch"].encode("utf-8", "surrogateescape")
    return code, b""


def _restore(root: Path, folder: Path, record: Record) -> None:
    (folder / "params.yaml").write_text(record.params, encoding="utf-8")
    if record.lock:
        (folder / "dvc.lock").write_text(record.lock, encoding="utf-8")
    for path, content in record.uncached.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)
    cache = command(dvc("cache", "dir"), root).strip()
    command(dvc("cache", "dir", "--local", str((root / cache).resolve())), folder)
    _restore_pictures(root / "data" / "raw", folder / "data" / "raw", folder)


def _restore_pictures(now: Path, then: Path, folder: Path) -> None:
    """The user's own pictures: of that time where DVC keeps them (`dvc add data/raw`), else those of today."""
    tracked = then.with_name("raw.dvc")
    if tracked.exists():
        command(dvc("checkout", str(tracked)), folder)
    elif now.is_dir():
        shutil.rmtree(then, ignore_errors=True)
        then.parent.mkdir(exist_ok=True)
        then.symlink_to(now, target_is_directory=True)


def dvc(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dvc", *arguments]


def reproduce(root: Path, folder: Path, stages: list[str], anew: bool) -> None:
    """`dvc repro` of the stages in the worktree, its output shown. Raises ConfigError when a stage fails.

    anew: execute every stage, take nothing from the cache. Nothing is logged to MLflow: the past isn't rewritten.
    """
    options = ["--force", "--no-run-cache"] if anew else _pull_option(folder)
    env = {
        **os.environ,
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", ""))),
        "SHIFT_DIFFUSION_ROOT": str(root),
        "SHIFT_DIFFUSION_TRACKING": "off",
    }
    env.pop("DVC_ROOT", None)
    done = subprocess.run(dvc("repro", *options, *stages), cwd=folder, env=env)
    if done.returncode:
        raise ConfigError([f"dvc repro failed in {folder} with exit code {done.returncode}; its output is above"])


def _pull_option(folder: Path) -> list[str]:
    return ["--pull", "--allow-missing"] if command(dvc("remote", "list"), folder).strip() else []
