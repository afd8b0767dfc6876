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


def _raise_terminated(signum, frame):
    raise Terminated(f"signal {signum}")


def run_stage(main: Callable[[], None]) -> None:
    """Runs `main` and exits: 0 done, 2 bad input (messages on stderr), 130 Ctrl-C, 143 SIGTERM, 1 anything else."""
    signal.signal(signal.SIGTERM, _raise_terminated)
    warnings.formatwarning = lambda message, *about, **more: f"note: {message}\n"  # a user needs no line of code
    try:
        main()
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
