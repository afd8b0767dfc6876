"""The Frechet distance of two sets of features (FID), without a matrix square root.

FID (Heusel et al. 2017, eq. 6) is |m_a - m_b|^2 + tr(C_a + C_b - 2 (C_a C_b)^(1/2)). With C_a = A^T A and C_b = B^T B
the eigenvalues of C_a C_b are those of (A B^T)(A B^T)^T, so the trace of the square root is the nuclear norm of A B^T:
the sum of its singular values. Those are real and never negative whatever the sets are, also for fewer samples than
features.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

TOLERANCE = 1e-7  # of the traces: what is allowed to be lost to rounding


@dataclass(frozen=True)
class FeatureStatistics:
    """Mean and scatter of a set of feature vectors, exact and mergeable.

    count: number of vectors.
    mean: (d,) float64.
    factor: (k, d) float64 with k <= max(count, d), factor^T factor = sum over the vectors of (x - mean)(x - mean)^T.
    """

    count: int
    mean: Tensor
    factor: Tensor

    @classmethod
    def of(cls, features: Tensor) -> FeatureStatistics:
        """features: (n, d) of any float dtype, n >= 1, finite.

        Raises:
            ValueError: empty or not finite.
        """
        if features.ndim != 2 or not len(features):
            raise ValueError(f"expected features (n, d) with n >= 1, got {tuple(features.shape)}")
        if not torch.isfinite(features).all():
            raise ValueError("features hold values that aren't finite")
        mean = features.mean(0, dtype=torch.float64)
        return cls(len(features), mean, _at_most_square(features - mean))

    @classmethod
    def of_batches(cls, batches: Iterable[Tensor]) -> FeatureStatistics:
        """The same from batches (n_i, d): memory stays at a few d x d matrices however many samples there are."""
        total, waiting, rows = None, [], 0
        for batch in batches:
            waiting.append(batch)
            rows += len(batch)
            if rows >= batch.shape[1]:  # fewer, larger reductions: each costs about d^3
                total, waiting, rows = cls._with(total, waiting), [], 0
        if waiting:
            total = cls._with(total, waiting)
        if total is None:
            raise ValueError("no features at all")
        return total

    @classmethod
    def _with(cls, total: FeatureStatistics | None, batches: list[Tensor]) -> FeatureStatistics:
        part = cls.of(torch.cat(batches))
        return part if total is None else total.merged(part)

    def merged(self, other: FeatureStatistics) -> FeatureStatistics:
        """Statistics of both sets together (Chan et al. 1979, on factors: nothing is squared)."""
        count = self.count + other.count
        delta = other.mean - self.mean
        between = delta * (self.count * other.count / count) ** 0.5
        factor = _at_most_square(torch.cat([self.factor, other.factor, between[None]]))
        return FeatureStatistics(count, self.mean + delta * (other.count / count), factor)

    @property
    def deviations(self) -> Tensor:
        """A of the module's text: (k, d), A^T A is the unbiased covariance."""
        if self.count < 2:
            raise ValueError(f"a covariance needs at least 2 samples, there is {self.count}")
        return self.factor / (self.count - 1) ** 0.5

    @property
    def covariance_trace(self) -> float:
        return float(self.deviations.square().sum())


def _at_most_square(factor: Tensor) -> Tensor:
    """(k, d) to (min(k, d), d) with the same factor^T factor."""
    if len(factor) <= factor.shape[1]:
        return factor
    return torch.linalg.qr(factor, mode="r").R


def frechet_distance(a: FeatureStatistics, b: FeatureStatistics) -> float:
    """FID of two sets; symmetric, >= 0, and 0 for a set against itself.

    Work is that of the smaller matrix on each side: n x n for n samples, d x d when n is above d.
    """
    if a.mean.shape != b.mean.shape:
        raise ValueError(f"features of different length: {len(a.mean)} and {len(b.mean)}")
    traces = a.covariance_trace + b.covariance_trace
    shared = nuclear_norm((a.deviations @ b.deviations.T).numpy(), tolerance=TOLERANCE * traces)
    distance = float((a.mean - b.mean).square().sum()) + traces - 2 * shared
    return max(0.0, distance)  # rounding can leave -1e-12 of the traces


def nuclear_norm(product: np.ndarray, tolerance: float) -> float:
    """Sum of the singular values of a matrix (p, q) float64, to within `tolerance`.

    From the eigenvalues of the smaller Gram matrix, in half the time of a singular value decomposition. Squaring costs
    accuracy where singular values are below 1e-8 of the largest; the error that this can make is bounded, and when the
    bound exceeds the tolerance the decomposition is made after all.
    """
    if len(product) > product.shape[1]:
        product = product.T
    values = np.linalg.eigvalsh(product @ product.T).clip(min=0)
    noise = len(values) ** 0.5 * np.finfo(np.float64).eps * values[-1]  # of each eigenvalue
    singular = np.sqrt(values)
    errors = np.minimum(noise**0.5, noise / (2 * np.maximum(singular, 1e-300)))
    # centered samples leave one exact zero: it is the smallest value, and left out of sum and bound
    if errors[1:].sum() <= tolerance:
        return float(singular[1:].sum()) if values[0] <= noise else float(singular.sum())
    return float(np.linalg.svd(product, compute_uv=False).sum())
