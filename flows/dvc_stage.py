"""Runs one DVC command as a process group on a leash and streams what it prints."""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flows import leash

GRACE_SECONDS = 20.0  # between asking a stage to stop and killing it: enough for one checkpoint
KEPT_LINES = 2000  # of the output, for the reason of a failure; everything goes to the log
KILL_SECONDS = 10.0  # for a leash to finish its killing, before its group is killed from outside
_EXIT = re.compile(r"failed to run: .*, exited with (-?\d+)")
_BUSY = re.compile(r"is busy, it is being blocked by|Unable to acquire lock")


class StageFailed(RuntimeError):
    """A DVC command failed. `exit_code` is the stage's own (negative: ended by that signal)."""

    def __init__(self, message: str, exit_code: int):
        super().__init__(message)
        self.exit_code = exit_code

    @property
    def crashed(self) -> bool:
        """Ended by a signal (out of memory, segmentation fault, kill): the next try resumes."""
        return self.exit_code < 0 or self.exit_code > 128


class StageTimedOut(StageFailed):
    """The time limit passed; the whole process group was ended."""


class StageStopped(StageFailed):
    """The flow was cancelled or another stage failed; the whole process group was ended."""


@dataclass
class Command:
    """One DVC command to run.

    arguments: after `dvc`.          root: project folder, the working directory.
    time_limit: seconds or None.     stop: set from outside to end it early.
    keep: descriptors that must stay open as long as any of its processes lives (the project's lock).
    """

    arguments: list[str]
    root: Path
    log: Callable[[str], None]
    time_limit: float | None = None
    stop: threading.Event | None = None
    keep: tuple[int, ...] = ()
    grace: float = GRACE_SECONDS


def environment() -> dict[str, str]:
    """The stage's environment: `python` is this interpreter, output comes line by line, nobody phones home."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    return {**os.environ, "PATH": path, "PYTHONUNBUFFERED": "1", "DVC_NO_ANALYTICS": "true", "DVC_TEST": "true"}


def run_dvc(command: Command) -> str:
    """Runs the command to its end and returns what it printed.

    Raises:
        StageTimedOut, StageStopped: after every process of it is gone.
        StageFailed: on any exit code but 0, with the last lines as reason.
    """
    read_end, write_end = os.pipe()
    process = _start(command, read_end)
    os.close(read_end)
    try:
        output, ended_as = _follow(process, command)
    finally:
        os.close(write_end)  # the lifeline: from here on everything ends, whatever happened
        _bury(process, command.grace)
    _raise_failure(command, process.returncode, output, ended_as)
    return "\n".join(output)


def _start(command: Command, lifeline: int) -> subprocess.Popen:
    leash_command = [sys.executable, leash.__file__, str(lifeline), str(command.grace)]
    return subprocess.Popen(
        [*leash_command, sys.executable, "-m", "dvc", "--wait-for-lock", *command.arguments],
        cwd=command.root,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        pass_fds=(lifeline, *command.keep),
        start_new_session=True,  # Ctrl-C in the terminal reaches the flow only, which then ends its stages
    )


def _follow(process: subprocess.Popen, command: Command) -> tuple[deque[str], type[StageFailed] | None]:
    """Streams lines until the process ends, the time limit passes or `stop` is set."""
    end = time.monotonic() + (command.time_limit or float("inf"))
    lines = _Lines(process, command.log)
    while not lines.closed:
        lines.read(timeout=0.2)
        if command.stop and command.stop.is_set():
            return lines.all, StageStopped
        if time.monotonic() > end:
            return lines.all, StageTimedOut
        if process.poll() is not None:
            lines.drain()
            break
    return lines.all, None


class _Lines:
    """The output of a process, line by line, without ever blocking for longer than asked."""

    def __init__(self, process: subprocess.Popen, log: Callable[[str], None]):
        self.all: deque[str] = deque(maxlen=KEPT_LINES)
        self.closed = False
        self._log, self._rest = log, b""
        self._descriptor = process.stdout.fileno()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._descriptor, selectors.EVENT_READ)

    def read(self, timeout: float) -> bool:
        """Takes what is there; False when nothing was."""
        if not self._selector.select(timeout):
            return False
        block = os.read(self._descriptor, 1 << 16)
        self.closed = not block
        *complete, self._rest = (self._rest + block).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        if self.closed and self._rest:
            complete.append(self._rest)
        for line in complete:
            self._emit(line.decode("utf-8", "replace").rstrip())
        return not self.closed

    def drain(self) -> None:
        while self.read(timeout=0):
            pass
        if self._rest and not self.closed:
            self._emit(self._rest.decode("utf-8", "replace").rstrip())

    def _emit(self, line: str) -> None:
        if line:
            self.all.append(line)
            self._log(line)


def _bury(process: subprocess.Popen, grace: float) -> None:
    """Waits until the leash is gone, and ends its group if the leash itself was killed or hangs."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace + KILL_SECONDS)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def _raise_failure(command: Command, code: int, output: deque[str], ended_as: type[StageFailed] | None) -> None:
    what = f"dvc {' '.join(command.arguments)}"
    if ended_as is StageTimedOut:
        raise StageTimedOut(f"{what}: time limit of {command.time_limit:g} s passed, ended with all its processes", 124)
    if ended_as is StageStopped:
        raise StageStopped(f"{what}: stopped with all its processes", 143)
    if code == 0:
        return
    text = "\n".join(output)
    if _BUSY.search(text):
        raise StageFailed(f"{what}: another DVC command works in this project:\n{_tail(output)}", 1)
    own = _EXIT.search(text)
    raise StageFailed(f"{what}: failed:\n{_tail(output)}", int(own.group(1)) if own else code)


def _tail(output: deque[str], count: int = 20) -> str:
    """The end of the output, as the reason to show."""
    return "\n".join(list(output)[-count:])
