"""The seam between networks and samplers: a network, its schedule and its condition as one `denoise(x_t, t) -> x_0`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from shift_diffusion.process.bins import x0_if_logits
from shift_diffusion.process.forward import Prediction, to_x0
from shift_diffusion.process.guidance import guide, join
from shift_diffusion.process.schedules import NoiseSchedule


class Denoiser:
    """Estimates x_0 from x_t with guidance.

    network: callable (x_t (B, 3, H, W), log_snr (B,) float32, text, drop (B,) bool) -> prediction, or logits of bins.
    text: the condition of each picture, or None for none (guidance then has nothing to compare).
    negative: condition that takes the place of the learned null embedding in guidance.
    clip: clamp estimates to [-1, 1].
    """

    def __init__(
        self,
        network: Callable[..., Tensor],
        schedule: NoiseSchedule,
        prediction: Prediction,
        text: Any | None = None,
        guidance_scale: float = 1.0,
        *,
        negative: Any | None = None,
        clip: bool = False,
    ):
        if prediction not in schedule.predictions:
            allowed = ", ".join(schedule.predictions)
            raise ValueError(f"prediction '{prediction}' with schedule {schedule.name}; allowed: {allowed}")
        self.network = network
        self.schedule = schedule
        self.prediction = prediction
        self.text = text
        self.guidance_scale = guidance_scale
        self.negative = negative
        self.clip = clip

    def __call__(self, x_t: Tensor, t: Tensor | float) -> Tensor:
        """x_t: (B, 3, H, W); t: a float or (B,) float64 in (0, 1]. Returns (B, 3, H, W) in x_t's dtype."""
        # float64 on the CPU, because some devices have none
        t = torch.as_tensor(t, dtype=torch.float64).cpu().expand(len(x_t))
        x_0 = self._guided(x_t, t)
        return x_0.clamp(-1, 1) if self.clip else x_0

    def _guided(self, x_t: Tensor, t: Tensor) -> Tensor:
        if self.text is None:
            return self._estimate(x_t, t, None, None)
        if self.guidance_scale == 1:
            return self._estimate(x_t, t, self.text, None)
        keep, drop = (torch.full((len(x_t),), value, device=x_t.device) for value in (False, True))
        other, other_drop = (self.text, drop) if self.negative is None else (self.negative, keep)
        if self.guidance_scale == 0:
            return self._estimate(x_t, t, other, other_drop)
        both = self._estimate(
            torch.cat([x_t, x_t]), torch.cat([t, t]), join(self.text, other), torch.cat([keep, other_drop])
        )
        return guide(*both.chunk(2), self.guidance_scale)

    def _estimate(self, x_t: Tensor, t: Tensor, text: Any | None, drop: Tensor | None) -> Tensor:
        log_snr = self.schedule.log_snr(t).to(x_t.device, torch.float32)
        output = x0_if_logits(self.network(x_t, log_snr, text, drop), x_t).to(x_t.dtype)
        return to_x0(self.prediction, output, x_t, self.schedule.alpha(t), self.schedule.sigma(t))
