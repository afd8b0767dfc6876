"""Randomness as a function of (seed, stage, draw, sample), never of what was drawn before.

Philox (Salmon et al. 2011) scrambles a counter: each sample of each draw owns a range of 2^64 counter values, so
a value needs no generator state, doesn't depend on how many processes share the batch, and is the same
after a kill. Words used here and in the rest of the package:

- `draw`: number of the group of images that one optimizer step looks at (a skipped step uses up its draw);
- `sample`: place of one image in the *global* group, 0 to batch_size * accumulation * processes - 1.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

SHARED = 2**64 - 1  # the sample number of values that the whole group shares


@lru_cache(maxsize=64)
def _key(seed: int, purpose: str) -> int:
    """128 bits; purposes (noise, time, ...) of one seed are unrelated streams."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=16).digest(), "little")


def generator(seed: int, stage: int, draw: int, sample: int, purpose: str) -> np.random.Generator:
    """The stream of one sample. Counter words, lowest first: position in the stream, sample, draw, stage."""
    counter = np.array([0, sample, draw, stage], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=_key(seed, purpose), counter=counter))


def torch_seed(seed: int, stage: int, draw: int, purpose: str) -> int:
    """For `torch.manual_seed`, where torch itself must draw (first weights, dropout)."""
    return int(generator(seed, stage, draw, SHARED, purpose).integers(2**63))


def normal(seed: int, stage: int, draw: int, samples: Sequence[int], shape: tuple[int, ...], purpose: str) -> Tensor:
    """Standard normal noise, (len(samples), *shape) float32."""
    out = np.empty((len(samples), *shape), dtype=np.float32)
    for row, sample in zip(out, samples, strict=True):
        generator(seed, stage, draw, sample, purpose).standard_normal(dtype=np.float32, out=row)
    return torch.from_numpy(out)


def uniform(seed: int, stage: int, draw: int, samples: Sequence[int], purpose: str) -> Tensor:
    """One value in [0, 1) per sample, (len(samples),) float64."""
    return torch.tensor([generator(seed, stage, draw, sample, purpose).random() for sample in samples]).double()


def stratified(seed: int, stage: int, draw: int, samples: Sequence[int], group_size: int, purpose: str) -> Tensor:
    """Uniform values in (0, 1) that cover the interval evenly over the group, (len(samples),) float64.

    Sample i gets ((i + u) / group_size + v) mod 1 with a jitter u of its own and an offset v of the group
    (low-discrepancy times of Kingma et al. 2021, appendix I.1, with jitter): each value alone is uniform, and the
    mean over the group has far less variance.
    """
    offset = generator(seed, stage, draw, SHARED, purpose).random()
    places = torch.tensor(list(samples), dtype=torch.float64)
    values = ((places + uniform(seed, stage, draw, samples, purpose)) / group_size + offset) % 1.0
    return values.clamp(min=2.0**-40, max=1 - 2.0**-40)


@lru_cache(maxsize=4)
def _permutation(seed: int, stage: int, epoch: int, size: int) -> np.ndarray:
    return generator(seed, stage, epoch, SHARED, "order").permutation(size)


def order(seed: int, stage: int, positions: Sequence[int], size: int) -> np.ndarray:
    """Which of `size` images stand at these positions of the endless stream of epochs, int64.

    Epoch e holds the positions e * size to (e + 1) * size - 1 in an order of its own: every image once.
    """
    return np.array([_permutation(seed, stage, p // size, size)[p % size] for p in positions], dtype=np.int64)
