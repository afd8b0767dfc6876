"""Speed of the training, and how much of it is lost to waiting for data."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Speed and waiting since the last lap."""

    def __init__(self) -> None:
        self.images, self._waited, self._start = 0, 0.0, time.perf_counter()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self._waited += time.perf_counter() - start

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Validation and checkpoints don't count as training."""
        start = time.perf_counter()
        yield
        self._start += time.perf_counter() - start

    def lap(self) -> dict[str, float]:
        now = time.perf_counter()
        elapsed = now - self._start
        values = {"images_per_s": self.images / elapsed, "data_wait_share": self._waited / elapsed}
        self.images, self._waited, self._start = 0, 0.0, now
        return values
