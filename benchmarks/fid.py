"""The FID arithmetic side by side: ours, torch-fidelity's and pytorch-fid's, on the same features.

    python benchmarks/fid.py            best of three, feature matrices to number

pytorch-fid takes part where it is installed. Features are normal with a decaying spectrum; extraction isn't timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch_fidelity.metric_fid import KEY_METRIC_FID, fid_features_to_statistics, fid_statistics_to_metric

from shift_diffusion.evaluation.frechet import FeatureStatistics, frechet_distance

NUM_SAMPLES = 1000
REPEATS = 3


def features(size: int, seed: int) -> Tensor:
    """(1000, size) float32."""
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(NUM_SAMPLES, size, generator=rng) * torch.logspace(0, -2, size) + 0.1 * seed


def ours(a: Tensor, b: Tensor) -> float:
    return frechet_distance(FeatureStatistics.of(a), FeatureStatistics.of(b))


def torch_fidelity(a: Tensor, b: Tensor) -> float:
    statistics = (fid_features_to_statistics(x) for x in (a, b))
    return fid_statistics_to_metric(*statistics, verbose=False)[KEY_METRIC_FID]


def pytorch_fid(a: Tensor, b: Tensor) -> float:
    from pytorch_fid.fid_score import calculate_frechet_distance

    (m, c), (n, d) = ((x.numpy().mean(0), np.cov(x.numpy(), rowvar=False)) for x in (a, b))
    return float(calculate_frechet_distance(m, c, n, d))


def best(compute: Callable[[], float], repeats: int) -> tuple[float, float, float]:
    """(value, seconds on the clock, seconds of all CPUs), the best of the repeats each."""
    walls, cpus, value = [], [], 0.0
    for _ in range(repeats):
        wall, cpu = time.perf_counter(), time.process_time()
        value = compute()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return value, min(walls), min(cpus)


def main() -> None:
    print(f"{NUM_SAMPLES} samples, {torch.get_num_threads()} threads, best of {REPEATS}")
    for size in (1280, 2048):
        a, b = features(size, 0), features(size, 1)
        reference = best(lambda: ours(a, b), REPEATS)  # noqa: B023 - called at once
        for name, compute in (("ours", ours), ("torch-fidelity", torch_fidelity), ("pytorch-fid", pytorch_fid)):
            try:
                value, wall, cpu = best(lambda: compute(a, b), REPEATS)  # noqa: B023
            except ImportError:
                print(f"d={size} {name:15} not installed")
                continue
            times = f"{wall:8.3f} s ({wall / reference[1]:5.1f}x), CPU {cpu:8.3f} s ({cpu / reference[2]:5.1f}x)"
            print(f"d={size} {name:15} {value:14.8f} {times}", flush=True)


if __name__ == "__main__":
    main()
