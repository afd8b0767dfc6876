"""SIGTERM and Ctrl-C end a run between two steps, with a checkpoint; a second Ctrl-C ends it at once."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType

_ECHO_S = 1.0  # launchers pass on the signal that the whole process group has had already


class StopRequest:
    """Inside the `with` block a first SIGTERM or SIGINT only sets `signum`; the handlers before come back after it."""

    def __init__(self) -> None:
        self.signum = 0
        self._asked_at = 0.0
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
            for signum in (signal.SIGTERM, signal.SIGINT):
                self._before[signum] = signal.signal(signum, self._handle)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        if not self.signum:
            self.signum, self._asked_at = signum, time.monotonic()
        elif signum == signal.SIGINT and time.monotonic() - self._asked_at > _ECHO_S:
            raise KeyboardInterrupt
