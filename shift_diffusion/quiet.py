"""Hides what libraries say about each other while they load: nothing that a user could act on. Errors pass."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """torchao's notice about enums in torch, and transformers' report and bar about the weights it loads."""
    loggers = [logging.getLogger(name) for name in ("torch.utils._pytree", "transformers")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
