"""Fair timing on a busy machine: candidates take turns, so whatever else runs meanwhile hits all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def interleaved(candidates: dict[str, Callable[[], object]], rounds: int, warm_up: int = 2) -> dict[str, list[float]]:
    """Seconds of every round per candidate. Rounds go through all candidates; the warm-up is left out.

    On one thread the clock is the thread's CPU time, which other processes can't stretch; on more it is wall time.
    """
    import torch

    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    seconds = {name: [] for name in candidates}
    for turn in range(warm_up + rounds):
        for name, candidate in candidates.items():
            start = clock()
            candidate()
            if turn >= warm_up:
                seconds[name].append(clock() - start)
    return seconds


def ratio(seconds: dict[str, list[float]], reference: str, name: str) -> tuple[float, float, float]:
    """How many times faster `name` is: (median of the rounds' ratios, lower and upper quartile)."""
    ratios = [slow / fast for slow, fast in zip(seconds[reference], seconds[name], strict=True)]
    quartiles = statistics.quantiles(ratios, n=4)
    return statistics.median(ratios), quartiles[0], quartiles[2]


def line(seconds: dict[str, list[float]], reference: str, name: str) -> str:
    """One row of a report: fastest time, median time, ratio with its quartiles."""
    median, low, high = ratio(seconds, reference, name)
    times = seconds[name]
    return (
        f"  {name:<34} {min(times) * 1e3:9.2f} ms best {statistics.median(times) * 1e3:9.2f} ms median"
        f"   {median:6.2f}x {reference} ({low:.2f} .. {high:.2f})"
    )
