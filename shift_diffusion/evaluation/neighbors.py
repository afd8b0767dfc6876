"""The nearest training picture of each generated one: is the model drawing from memory?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

_ROWS = 1024  # of the distance matrix at a time


class Neighbors(NamedTuple):
    """distance: (n,) float64 to the nearest; index: (n,) int64, which row it is."""

    distance: Tensor
    index: Tensor


def nearest(features: Tensor, among: Tensor) -> Neighbors:
    """Euclidean nearest rows. features: (n, d), among: (m, d), any float dtype."""
    bank = among.double()
    parts = [torch.cdist(part.double(), bank).min(1) for part in features.split(_ROWS)]
    return Neighbors(torch.cat([p.values for p in parts]), torch.cat([p.indices for p in parts]))


def memorization(generated: Tensor, held_out: Tensor, train: Tensor) -> dict[str, float]:
    """How near generated pictures come to training pictures, with unseen real pictures as the yardstick.

    Returns:
        nearest_train_distance: median over the generated pictures.
        nearest_train_distance_held_out: the same of held-out real pictures.
        memorized_share: generated pictures nearer to a training picture than 99 % of the held-out ones are;
            0.01 is what unseen pictures give.
    """
    ours, theirs = nearest(generated, train).distance, nearest(held_out, train).distance
    limit = torch.quantile(theirs, 0.01)
    return {
        "nearest_train_distance": float(ours.median()),
        "nearest_train_distance_held_out": float(theirs.median()),
        "memorized_share": float((ours < limit).double().mean()),
    }
