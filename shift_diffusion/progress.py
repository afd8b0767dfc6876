"""One progress display: a bar on a terminal, plain lines elsewhere (logs of DVC, Prefect, CI)."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_SECONDS_BETWEEN_LINES = 10.0


class Progress:
    """Counts finished units. `update(n, note)` is cheap enough for every training step."""

    def __init__(self, total: int, description: str, unit: str = "image", initial: int = 0):
        self.total, self.description, self.unit = total, description, unit
        self.count, self.note = initial, ""
        self._initial, self._start = initial, time.monotonic()
        self._last_line = self._start
        self._bar = self._make_bar(initial) if sys.stderr.isatty() else None

    def _make_bar(self, initial: int):
        from tqdm import tqdm

        return tqdm(total=self.total, desc=self.description, unit=f" {self.unit}s", initial=initial, dynamic_ncols=True)

    def update(self, count: int = 1, note: str = "") -> None:
        self.count += count
        self.note = note or self.note
        if self._bar is not None:
            if note:
                self._bar.set_postfix_str(note, refresh=False)
            self._bar.update(count)
        elif time.monotonic() - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._print_line()

    def _print_line(self) -> None:
        self._last_line = time.monotonic()
        rate = (self.count - self._initial) / max(self._last_line - self._start, 1e-9)
        left = f", {_clock((self.total - self.count) / rate)} left" if rate and self.count < self.total else ""
        note = f", {self.note}" if self.note else ""
        print(f"{self.description}: {self.count}/{self.total} {self.unit}s, {rate:.4g}/s{left}{note}", flush=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
        else:
            self._print_line()


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}" if hours else f"{minutes}:{seconds:02}"


@contextmanager
def progress_bar(total: int, description: str, unit: str = "image", initial: int = 0) -> Iterator[Progress]:
    bar = Progress(total, description, unit, initial)
    try:
        yield bar
    finally:
        bar.close()


def progress(items: Iterable, description: str, unit: str = "image", total: int | None = None) -> Iterator:
    """Yields the items and shows how far it got; `total` is needed when the items have no length."""
    with progress_bar(total if total is not None else len(items), description, unit) as bar:  # type: ignore[arg-type]
        for item in items:
            yield item
            bar.update()
