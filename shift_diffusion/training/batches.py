"""From (seed, stage, draw) to the tensors of one optimizer step, made while the step before it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from shift_diffusion.config import Params, Stage
from shift_diffusion.data.augment import augment
from shift_diffusion.data.store import PreparedData
from shift_diffusion.models.conditioning import TextCondition
from shift_diffusion.process.schedules import NoiseSchedule, draw_times
from shift_diffusion.training import rng

Made = TypeVar("Made")
Key = tuple[int, int]


@dataclass(frozen=True)
class Batch:
    """One micro-batch of one process.

    images (B, 3, R, R) uint8; eps (B, 3, R, R) float32; t (B,) float64, 1 = noise, stays on the CPU; quartile (B,)
    int64, 0 = the least noisy quarter of the draws; log_snr, alpha, sigma (B,) float32; weight (B,) float32, 0 for an
    image that only fills the batch of a process without work; indices: which images of the data set.
    """

    images: Tensor
    eps: Tensor
    t: Tensor
    quartile: Tensor
    log_snr: Tensor
    alpha: Tensor
    sigma: Tensor
    weight: Tensor
    text: TextCondition | None
    drop: Tensor | None
    indices: np.ndarray

    def to(self, device: torch.device) -> Batch:
        """Copied asynchronously to an accelerator; itself on the CPU."""
        if device.type == "cpu":
            return self
        moved = {name: _moved(value, device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        text = None if self.text is None else TextCondition(*(_moved(part, device) for part in self.text))
        return Batch(**{**vars(self), **moved, "t": self.t, "text": text})


def _moved(tensor: Tensor, device: torch.device) -> Tensor:
    if device.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def micro_batches(group_size: int, micro_size: int, world: int, rank: int) -> list[range]:
    """The samples of a group that process `rank` works on, in micro-batches of at most `micro_size`.

    Every process gets the same number of micro-batches, so that their gradients can meet; in the last, incomplete
    group of a stage some of them may be empty.
    """
    share = -(-group_size // world)
    end = min((rank + 1) * share, group_size)
    starts = range(rank * share, (rank + 1) * share, micro_size)
    return [range(min(start, end), min(start + micro_size, end)) for start in starts]


def to_batch(
    images: Tensor,
    eps: Tensor,
    u: Tensor,
    schedule: NoiseSchedule,
    time_sampling: str,
    indices: np.ndarray,
    text: TextCondition | None = None,
    drop: Tensor | None = None,
    weight: float = 1.0,
) -> Batch:
    """Adds noise levels to images (B, 3, R, R) uint8. u: (B,) in (0, 1), rank of the noise level of each."""
    t = draw_times(u, time_sampling, schedule)
    return Batch(
        images=images,
        eps=eps,
        t=t,
        quartile=(u * 4).long().clamp(max=3),
        log_snr=schedule.log_snr(t).float(),
        alpha=schedule.alpha(t).float(),
        sigma=schedule.sigma(t).float(),
        weight=torch.full((len(images),), weight),
        text=text,
        drop=drop,
        indices=indices,
    )


class TrainingBatches:
    """The batches of one stage as a function of the draw.

    Args:
        group_size: images of a full group: batch_size * accumulation * processes.
    """

    def __init__(self, params: Params, stage: int, data: PreparedData, schedule: NoiseSchedule, world: int, rank: int):
        self.section: Stage = params.train.stages[stage - 1]
        self.group_size = self.section.batch_size * self.section.accumulation * world
        self._params, self._stage, self._data, self._schedule = params, stage, data, schedule
        self._world, self._rank = world, rank
        self._train = data.split("train")
        self._conditioned = params.conditioning.style != "none"

    @property
    def num_steps(self) -> int:
        """Optimizer steps of the stage; the last group may be incomplete."""
        return -(-self.section.images // self.group_size)

    def size_of(self, step: int) -> int:
        """Images of optimizer step `step`."""
        return min(self.group_size, self.section.images - step * self.group_size)

    def make(self, draw: int, size: int) -> list[Batch]:
        """This process's micro-batches of the group of `size` images number `draw`."""
        parts = micro_batches(size, self.section.batch_size, self._world, self._rank)
        return [self._make(draw, size, part) for part in parts]

    def _make(self, draw: int, size: int, part: range) -> Batch:
        samples, weight = (part, 1.0) if part else (range(size - 1, size), 0.0)
        seed, stage, resolution = self._params.seed, self._stage, self.section.resolution
        positions = [draw * self.group_size + sample for sample in samples]
        indices = self._train[rng.order(seed, stage, positions, len(self._train))]
        images = augment(self._data.batch(indices, resolution), self.section.augment, seed, stage, positions)
        u = rng.stratified(seed, stage, draw, samples, size, "time")
        eps = noise(seed, stage, draw, samples, resolution, "noise")
        text = drop = None
        if self._conditioned:
            text = self._data.text(indices)
            drop = rng.uniform(seed, stage, draw, samples, "drop") < self._params.conditioning.drop_probability
        time_sampling = self._params.process.time_sampling
        return to_batch(images, eps, u, self._schedule, time_sampling, indices, text, drop, weight)


def noise(seed: int, stage: int, draw: int, samples: Sequence[int], resolution: int, purpose: str) -> Tensor:
    """(B, 3, R, R) float32 standard normal, drawn and stored in channels_last order, the layout of the images."""
    return rng.normal(seed, stage, draw, samples, (resolution, resolution, 3), purpose).permute(0, 3, 1, 2)


class Ahead(Generic[Made]):
    """Makes the batches of the next key in a thread while those of this one are used.

    What comes next is a guess: after a skipped step it may be wrong, and the right batches are then made on the spot.
    """

    def __init__(self, make: Callable[[int, int], Made]):
        self._make = make
        # One core is enough for it. With more, OpenMP would start a second team of threads, find more of them than
        # cores, and from then on put the training's own team to sleep between operators: steps take 1.5x as long.
        self._pool = ThreadPoolExecutor(1, "batches", initializer=torch.set_num_threads, initargs=(1,))
        self._pending: tuple[Key, Future[Made]] | None = None

    def take(self, key: Key, following: Key | None) -> Made:
        """The batches of `key`; those of `following` are begun."""
        pending, self._pending = self._pending, None
        made = pending[1].result() if pending is not None and pending[0] == key else self._make(*key)
        if following is not None:
            self._pending = following, self._pool.submit(self._make, *following)
        return made

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
