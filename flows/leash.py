"""Runs a command so that nothing of it outlives the process that asked for it.

    python leash.py LIFELINE_FD GRACE_SECONDS COMMAND...

The caller keeps the write end of a pipe whose read end is LIFELINE_FD. The pipe closes when the caller
wants the command to end, and equally when the caller is killed with -9: both end the command and all its
descendants (SIGINT and SIGTERM first, SIGKILL after the grace time). On Linux the leash adopts orphaned
descendants, so that even a process in a session of its own can't get away.

Standard library and psutil only: it starts in a tenth of a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import psutil

PR_SET_CHILD_SUBREAPER = 36
POLL_SECONDS = 0.1


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose own parent ends (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[psutil.Process]:
    """All living processes below this one; zombies are reaped by `wait_for`, not counted."""
    with contextlib.suppress(psutil.Error):
        return [p for p in psutil.Process().children(recursive=True) if _alive(p)]
    return []


def _alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _send(process: psutil.Process, number: signal.Signals) -> None:
    with contextlib.suppress(psutil.Error):
        process.send_signal(number)


def _deadline(seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        yield
        time.sleep(POLL_SECONDS)


def end_all(command: subprocess.Popen, grace: float) -> None:
    """Ends the command and its descendants.

    The command itself (DVC) gets SIGINT: while its stage runs it ignores that, waits for the stage, and
    then releases its locks in order; SIGTERM would kill it with its locks held. The rest gets SIGTERM.
    """
    for process in descendants():
        _send(process, signal.SIGINT if process.pid == command.pid else signal.SIGTERM)
    for _ in _deadline(grace):
        command.poll()
        if not descendants():
            return
    while living := descendants():
        for process in living:
            _send(process, signal.SIGKILL)
        command.poll()
        time.sleep(POLL_SECONDS / 10)


def hold(lifeline: int, grace: float, arguments: list[str]) -> int:
    """Runs the command until it ends or the lifeline closes; returns its exit code (128 + n for signal n)."""
    adopt_orphans()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the lifeline ends the leash
    command = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, preexec_fn=_default_signals)  # noqa: PLW1509
    while command.poll() is None:
        if select.select([lifeline], [], [], POLL_SECONDS)[0]:
            break
    end_all(command, grace)
    code = command.wait()
    return code if code >= 0 else 128 - code


def _default_signals() -> None:
    """Ignored signals are inherited over exec: give the command the usual ones back."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[1]), False)
    sys.exit(hold(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
