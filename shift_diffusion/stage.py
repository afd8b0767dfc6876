"""What all stages share at their outermost edge: how an ending becomes a message and an exit code."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from collections.abc import Callable

from shift_diffusion.config import ConfigError


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived: a Ctrl-C by another sender, with its own exit code."""


_asked_to_stop: list[KeyboardInterrupt] = []


def _stop(signum, frame):
    _asked_to_stop.append(Terminated(f"signal {signum}") if signum == signal.SIGTERM else KeyboardInterrupt())
    raise _asked_to_stop[0]


def raise_if_asked_to_stop() -> None:
    """Raises the stop again that a library has swallowed: one raised in a callback or destructor never gets out."""
    if _asked_to_stop:
        raise _asked_to_stop[0]


def run_stage(main: Callable[[], None]) -> None:
    """Runs `main` and exits: 0 done, 2 bad input (messages on stderr), 130 Ctrl-C, 143 SIGTERM, 1 anything else."""
    signal.signal(signal.SIGTERM, _stop)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell's background job ignores it, and shall
        signal.signal(signal.SIGINT, _stop)
    warnings.formatwarning = lambda message, *about, **more: f"note: {message}\n"  # a user needs no line of code
    try:
        main()
        raise_if_asked_to_stop()
    except ConfigError as error:
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        sys.exit(2)
    except Terminated:
        print("stopped by SIGTERM; the next run goes on from the last checkpoint", file=sys.stderr)
        _exit_now(143)
    except KeyboardInterrupt:
        print("stopped by Ctrl-C; the next run goes on from the last checkpoint", file=sys.stderr)
        _exit_now(130)


def _exit_now(code: int) -> None:
    """Skips interpreter shutdown: joining worker threads could outlast the ten seconds a stop may take."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
