"""The project folder that a flow works in: where it is, who holds it, and locks left by the dead."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil

LOCK = Path(".dvc/tmp/flow.lock")


class Busy(RuntimeError):
    """Another flow works in this project folder."""


def project_root(start: Path | None = None) -> Path:
    """The nearest folder upwards that holds `.dvc`; raises FileNotFoundError outside a DVC project."""
    start = (start or Path.cwd()).resolve()
    for folder in (start, *start.parents):
        if (folder / ".dvc").is_dir():
            return folder
    raise FileNotFoundError(f"{start}: not inside a DVC project; run the flow in the project's folder")


def this_process(pid: int | None = None) -> dict[str, float]:
    """A process (this one by default) as JSON; its start tells it from a later one with the same number."""
    process = psutil.Process(pid)
    return {"pid": process.pid, "started": process.create_time()}


def is_alive(process: dict[str, float]) -> bool:
    """Whether the process that `this_process` described still runs."""
    try:
        found = psutil.Process(int(process["pid"]))
        return abs(found.create_time() - process["started"]) < 1.0 and found.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, KeyError):
        return False


@contextlib.contextmanager
def hold_project(root: Path, wait_seconds: float = 45.0) -> Iterator[int]:
    """Holds the project for one flow; yields the lock's file descriptor.

    The kernel frees the lock when its last holder ends, however it ends. Stages inherit the descriptor
    through their leash: after a kill -9 of the flow, the lock stays until its last stage process is gone,
    and `wait_seconds` (longer than the leash's grace time) covers that moment.

    Raises:
        Busy: naming the process that holds it.
    """
    path = root / LOCK
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(descriptor, path, wait_seconds)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({**this_process(), "command": " ".join(sys.argv)}).encode(), 0)
        yield descriptor
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, wait_seconds: float) -> None:
    end = time.monotonic() + wait_seconds
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            holder = _holder(path)
            if time.monotonic() >= end or (holder and is_alive(holder)):
                raise Busy(_busy_message(path, holder)) from None
            time.sleep(0.2)


def _holder(path: Path) -> dict | None:
    try:
        return json.loads(path.read_text())
    except ValueError:  # between its truncation and its writing
        return None


def _busy_message(path: Path, holder: dict | None) -> str:
    who = f"process {holder['pid']} ({holder['command']})" if holder else "another process"
    return f"another flow works in this project: {who} holds {path}; wait for it or end it with Ctrl-C or kill"


def release_dead_locks(root: Path) -> list[str]:
    """Removes what dead DVC processes left in DVC's read-write lock; returns the paths freed.

    DVC drops entries of process ids that don't exist, but believes a number that the system has meanwhile
    given to another program, and gives up on a file cut short by a kill. (DVC's `tmp/lock` is a kernel
    lock that ends with its process: nothing to do.)
    """
    path = root / ".dvc/tmp/rwlock"
    try:
        content = json.loads(path.read_text())
        entries = [(key, who) for mode in ("read", "write") for key, who in _entries(content.get(mode, {}))]
    except FileNotFoundError:
        return []
    except (ValueError, AttributeError, TypeError):
        path.unlink()
        return ["the whole lock file (unreadable)"]
    dead = [key for key, who in entries if not _is_dvc(who)]
    if dead:
        path.write_text(json.dumps({mode: _living(content.get(mode, {})) for mode in ("read", "write")}))
    return sorted(set(dead))


def _entries(mode: dict) -> Iterator[tuple[str, dict]]:
    for key, holders in mode.items():
        for who in holders if isinstance(holders, list) else [holders]:
            yield key, who


def _living(mode: dict) -> dict:
    kept: dict = {}
    for key, holders in mode.items():
        if isinstance(holders, list):
            if alive := [who for who in holders if _is_dvc(who)]:
                kept[key] = alive
        elif _is_dvc(holders):
            kept[key] = holders
    return kept


def _is_dvc(who: dict) -> bool:
    """Whether the recorded process lives and is still a DVC command."""
    try:
        process = psutil.Process(int(who["pid"]))
        return process.status() != psutil.STATUS_ZOMBIE and any("dvc" in part for part in process.cmdline())
    except (psutil.Error, KeyError, ValueError):
        return False
