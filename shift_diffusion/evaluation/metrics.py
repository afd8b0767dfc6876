"""FID, KID, precision and recall of a set of generated pictures, from features."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence

import numpy as np
from torch import Tensor

from shift_diffusion.config import ConfigError
from shift_diffusion.evaluation.frechet import FeatureStatistics, frechet_distance

MIN_SAMPLES = 2
KID_SUBSETS = 100
NEIGHBORS = 3  # Kynkaanniemi et al. 2019


def check_count(count: int, what: str) -> None:
    """Refuses sets no score can be made of. Raises ConfigError."""
    if count < MIN_SAMPLES:
        raise ConfigError([f"{what}: {count} pictures; scores need at least {MIN_SAMPLES}"])


def scores(
    generated: Tensor, real: Tensor, real_statistics: FeatureStatistics, kid_subset_size: int, *, seed: int = 0
) -> dict[str, float]:
    """Scores of generated against real features.

    Args:
        generated: (n, d) float32.
        real: (m, d) float32, for KID, precision and recall.
        real_statistics: of the real set, for FID; may stand for more pictures than `real` holds.
        kid_subset_size: shrinks to the smaller set; the value used is in the result.

    Returns:
        fid, kid, precision, recall, kid_subset_size and few_samples: 1 when the covariance has less samples than
        features, which makes FID larger than it would be with more of them (it stays comparable at equal counts).
    """
    # here: ten seconds that the stages which only take features needn't wait
    from torch_fidelity.metric_kid import KEY_METRIC_KID_MEAN, kid_features_to_metric
    from torch_fidelity.metric_prc import KEY_METRIC_PRECISION, KEY_METRIC_RECALL, prc_features_to_metric

    check_count(len(generated), "generated")
    check_count(len(real), "real")
    few = len(generated) < generated.shape[1]
    if few:
        warnings.warn(
            f"{len(generated)} samples for {generated.shape[1]} features: compare this FID only at the same count",
            stacklevel=2,
        )
    # float64: torch-fidelity computes in what it is given, and cubes of float32 lose KID's small values
    first, second = generated.double(), real.double()
    size = min(kid_subset_size, len(first), len(second))
    kid = kid_features_to_metric(
        first, second, kid_subsets=KID_SUBSETS, kid_subset_size=size, rng_seed=seed, verbose=False
    )
    neighbors = min(NEIGHBORS, len(first) - 1, len(second) - 1)
    prc = prc_features_to_metric(first, second, prc_neighborhood=neighbors, verbose=False)
    return {
        "fid": frechet_distance(FeatureStatistics.of(generated), real_statistics),
        "kid": kid[KEY_METRIC_KID_MEAN],
        "precision": prc[KEY_METRIC_PRECISION],
        "recall": prc[KEY_METRIC_RECALL],
        "kid_subset_size": size,
        "few_samples": int(few),
    }


def mean_and_spread(per_seed: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means over the seeds under the same names and, for two seeds or more, standard deviations as NAME_std."""
    means = {name: float(np.mean([run[name] for run in per_seed])) for name in per_seed[0]}
    if len(per_seed) < 2:
        return means
    return means | {f"{name}_std": float(np.std([run[name] for run in per_seed], ddof=1)) for name in per_seed[0]}
