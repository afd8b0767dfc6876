"""Validation at fixed noise: the same images, noise levels and noise at every step, and one set of pictures."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from shift_diffusion.config import Params
from shift_diffusion.data.images import to_uint8
from shift_diffusion.data.store import PreparedData
from shift_diffusion.models.conditioning import TextCondition
from shift_diffusion.process.denoiser import Denoiser
from shift_diffusion.process.samplers import initial_noise, sample
from shift_diffusion.process.schedules import NoiseSchedule
from shift_diffusion.training.batches import Batch, micro_batches, noise, to_batch
from shift_diffusion.training.engine import Engine
from shift_diffusion.training.objective import NUM_QUARTILES

MAX_IMAGES = 256
NUM_SAMPLES, SAMPLE_STEPS = 16, 12
_GOLDEN = (5**0.5 - 1) / 2  # multiples of it modulo 1 cover [0, 1) evenly, for any number of them


class Validation:
    """Held-out loss of the averaged weights. Image i always meets the noise level of rank frac(i * golden ratio)."""

    def __init__(self, params: Params, stage: int, data: PreparedData, schedule: NoiseSchedule):
        self._params, self._stage, self._data, self._schedule = params, stage, data, schedule
        self._section = params.train.stages[stage - 1]
        self._indices = data.split("validation")[:MAX_IMAGES]
        self._conditioned = params.conditioning.style != "none"

    def loss(self, engine: Engine, stop: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """`validation_loss` and `validation_loss_q1` (least noise) to `_q4`; None when `stop` says so on the way."""
        total = torch.zeros(2 + 2 * NUM_QUARTILES, device=engine.parallel.device)
        for batch in self._batches(engine.parallel.world, engine.parallel.rank):
            total[:-1] += engine.statistics(batch)
            total[-1] += float(stop())
            if engine.parallel.world == 1 and total[-1]:  # with several processes all must do the same
                break
        numbers = engine.parallel.sum(total).tolist()
        if numbers[-1]:
            return None
        sums, counts = numbers[1 : 1 + NUM_QUARTILES], numbers[1 + NUM_QUARTILES : -1]
        quartiles = {f"validation_loss_q{k + 1}": s / n for k, (s, n) in enumerate(zip(sums, counts, strict=True)) if n}
        return {"validation_loss": numbers[0] / len(self._indices), **quartiles}

    def _batches(self, world: int, rank: int) -> Iterator[Batch]:
        for part in micro_batches(len(self._indices), self._section.batch_size, world, rank):
            samples, weight = (part, 1.0) if part else (range(1), 0.0)
            indices = self._indices[np.asarray(samples)]
            u = (torch.tensor(list(samples), dtype=torch.float64) + 0.5) * _GOLDEN % 1.0
            eps = noise(self._params.seed, self._stage, 0, samples, self._section.resolution, "validation")
            images = self._data.batch(indices, self._section.resolution)
            text = self._data.text(indices) if self._conditioned else None
            sampling = self._params.process.time_sampling
            yield to_batch(images, eps, u, self._schedule, sampling, indices, text, weight=weight)

    def samples(self, engine: Engine) -> Tensor:
        """Pictures of the averaged weights for the first held-out captions, one seed each; (N, 3, R, R) uint8."""
        device, resolution = engine.parallel.device, self._section.resolution
        indices = self._indices[:NUM_SAMPLES]
        text = None
        if self._conditioned:
            text = TextCondition(*(part.to(device) for part in self._data.text(indices)))
        denoise = Denoiser(engine.network, self._schedule, self._params.process.prediction, text, clip=True)
        start = initial_noise(list(range(len(indices))), (3, resolution, resolution)).to(device)
        steps = min(SAMPLE_STEPS, self._params.process.num_train_timesteps)
        return to_uint8(sample("dpmpp_2m", denoise, start, self._schedule, steps)).cpu()
