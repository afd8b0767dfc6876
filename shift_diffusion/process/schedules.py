"""Noise schedules: immutable values that say how much signal and noise there is at time t.

Everything is defined through log_snr(t), so that the timestep shift of SD3 / FLUX / Qwen-Image
(t' = s t / (1 + (s - 1) t) for flow matching) is one constant, -2 log(s), for every schedule. It is applied
here and nowhere else: training, sampling and the network read the same shifted functions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, get_args

import torch
from torch import Tensor

from shift_diffusion.process import betas as tables

Family = Literal["vp", "flow"]
Name = Literal["linear", "cosine", "cosine_beta", "hybrid", "flow"]
TimeSampling = Literal["uniform", "logit_normal"]

LOG_SNR_LIMIT = 30.0  # amplitudes of 3e-7: pure noise and clean picture to float32, and still finite
SMALLEST_TIME = 2.0**-53


def coefficients(log_snr: Tensor, family: Family) -> tuple[Tensor, Tensor]:
    """(alpha, sigma) of a log signal-to-noise ratio, any shape and float dtype, kept.

    vp: alpha^2 = sigmoid(log_snr), alpha^2 + sigma^2 = 1 (Kingma et al. 2021, eq. 4).
    flow: alpha = sigmoid(log_snr / 2), alpha + sigma = 1.
    """
    if family == "vp":
        return torch.sigmoid(log_snr).sqrt(), torch.sigmoid(-log_snr).sqrt()
    if family == "flow":
        return torch.sigmoid(log_snr / 2), torch.sigmoid(-log_snr / 2)
    raise ValueError(f"family is '{family}'; it must be one of {', '.join(get_args(Family))}")


def _as_time(t: Tensor | float) -> Tensor:
    return torch.as_tensor(t, dtype=torch.float64) if not isinstance(t, Tensor) else t.double()


@dataclass(frozen=True)
class NoiseSchedule:
    """One schedule; made by `make_schedule`. Equal settings compare equal.

    betas, alphas_cumprod: (T,) float64 after the timestep shift for family `vp`, None for `flow`.
    """

    name: Name
    family: Family
    num_train_timesteps: int
    timestep_shift: float = 1.0
    hybrid_mix: float = 0.7
    zero_terminal_snr: bool = False
    betas: Tensor | None = field(default=None, repr=False, compare=False)
    alphas_cumprod: Tensor | None = field(default=None, repr=False, compare=False)

    @cached_property
    def _log_snr_table(self) -> Tensor:
        """(T + 1,) log_snr at t = 0, 1/T, ..., 1; t = 0 is the clean picture up to the limit."""
        values = torch.logit(self.alphas_cumprod).clamp(-LOG_SNR_LIMIT, LOG_SNR_LIMIT)
        return torch.cat([values.new_full((1,), LOG_SNR_LIMIT), values])

    def _flow_level(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """(signal, noise) of the flow schedules, both exact at their ends, shift included."""
        level = tables.hybrid_level(t, self.hybrid_mix) if self.name == "hybrid" else t
        total = 1 + (self.timestep_shift - 1) * level
        return (1 - level) / total, self.timestep_shift * level / total

    def log_snr(self, t: Tensor | float) -> Tensor:
        """log(alpha^2 / sigma^2) at t in [0, 1], any shape; float64 of t's device, within +-LOG_SNR_LIMIT."""
        t = _as_time(t)
        if self.family == "flow":
            signal, noise = self._flow_level(t)
            return (2 * (signal.log() - noise.log())).clamp(-LOG_SNR_LIMIT, LOG_SNR_LIMIT)
        table, last = self._log_snr_table.to(t.device), self.num_train_timesteps
        position = t.clamp(0, 1) * last
        # (i + 1) / T * T may miss the whole number by one rounding: a timestep must give its own table entry
        nearest = position.round()
        position = torch.where((position - nearest).abs() < 1e-9, nearest, position)
        below = position.long().clamp(max=last - 1)
        return torch.lerp(table[below], table[below + 1], position - below)

    def alpha(self, t: Tensor | float) -> Tensor:
        """Coefficient of the picture at t in [0, 1], any shape; float64."""
        if self.family == "flow":
            return self._flow_level(_as_time(t))[0]
        return coefficients(self.log_snr(t), self.family)[0]

    def sigma(self, t: Tensor | float) -> Tensor:
        """Coefficient of the noise at t in [0, 1], any shape; float64."""
        if self.family == "flow":
            return self._flow_level(_as_time(t))[1]
        return coefficients(self.log_snr(t), self.family)[1]

    def timestep(self, index: Tensor | int) -> Tensor:
        """Time t = (i + 1) / T of timestep i in 0..T-1; float64."""
        index = torch.as_tensor(index)
        if index.numel() and (index.min() < 0 or index.max() >= self.num_train_timesteps):
            raise ValueError(f"timesteps go from 0 to {self.num_train_timesteps - 1}, got {index.tolist()}")
        return (index.double() + 1) / self.num_train_timesteps

    def snap(self, t: Tensor) -> Tensor:
        """The timestep a time in (0, 1] belongs to, as a time: ceil(t T) / T for `vp`, t itself for `flow`."""
        if self.family == "flow":
            return t
        return (t * self.num_train_timesteps).ceil().clamp(min=1) / self.num_train_timesteps

    def time_of(self, log_snr: Tensor) -> Tensor:
        """Inverse of `log_snr` by bisection; float64 in [0, 1], any shape."""
        target = log_snr.double()
        low, high = torch.zeros_like(target), torch.ones_like(target)
        for _ in range(60):
            middle = (low + high) / 2
            too_clean = self.log_snr(middle) > target
            low, high = torch.where(too_clean, middle, low), torch.where(too_clean, high, middle)
        return (low + high) / 2

    @property
    def predictions(self) -> tuple[str, ...]:
        """What a network may predict with this schedule; eps says nothing about x_0 where alpha is 0."""
        if self.family == "flow":
            return "velocity", "x0"
        return ("x0", "v") if self.zero_terminal_snr else ("eps", "x0", "v")

    def settings(self) -> dict[str, Any]:
        """JSON-able keyword arguments: `make_schedule(**schedule.settings())` equals the schedule."""
        return {
            "name": self.name,
            "num_train_timesteps": self.num_train_timesteps,
            "timestep_shift": self.timestep_shift,
            "hybrid_mix": self.hybrid_mix,
            "zero_terminal_snr": self.zero_terminal_snr,
            "family": self.family,
        }


def _betas(name: str, num_timesteps: int, hybrid_mix: float) -> Tensor:
    if name == "linear":
        return tables.linear_betas(num_timesteps)
    if name == "cosine":
        return tables.cosine_betas(num_timesteps)
    if name == "cosine_beta":
        return tables.cosine_ramp_betas(num_timesteps)
    return tables.hybrid_betas(num_timesteps, hybrid_mix)


def make_schedule(
    name: Name,
    num_train_timesteps: int = 1000,
    *,
    timestep_shift: float = 1.0,
    hybrid_mix: float = 0.7,
    zero_terminal_snr: bool = False,
    family: Family | None = None,
) -> NoiseSchedule:
    """Builds a schedule. Raises ValueError for unknown names and values out of range.

    num_train_timesteps: T of the discrete schedules, at least 20; without meaning for flow. timestep_shift: s > 0,
    1 = none. hybrid_mix: 1 = linear. family: None = by name; `hybrid` alone exists in both, as betas (vp) and as
    noise level (flow).
    """
    if name not in get_args(Name):
        raise ValueError(f"schedule '{name}' is unknown; there are {', '.join(get_args(Name))}")
    if not (timestep_shift > 0 and math.isfinite(timestep_shift)):
        raise ValueError(f"timestep_shift is {timestep_shift}; it must be a finite number above 0")
    tables.hybrid_level(torch.zeros(1), hybrid_mix)  # refuses a mix out of range whichever schedule is asked for
    natural: Family = "flow" if name == "flow" else "vp"
    family = family or natural
    if family not in get_args(Family) or (family != natural and name != "hybrid"):
        raise ValueError(f"schedule '{name}' has no family '{family}'")
    settings = (name, family, num_train_timesteps, float(timestep_shift), float(hybrid_mix), zero_terminal_snr)
    if family == "flow":
        if zero_terminal_snr:
            raise ValueError("zero_terminal_snr is for beta schedules; flow ends in pure noise anyway")
        return NoiseSchedule(*settings)
    if num_train_timesteps < tables.SMALLEST_T:
        raise ValueError(
            f"num_train_timesteps is {num_train_timesteps}; betas stay below 1 from {tables.SMALLEST_T} timesteps on"
        )
    betas = _betas(name, num_train_timesteps, hybrid_mix)
    return NoiseSchedule(*settings, *_shifted_tables(betas, timestep_shift, zero_terminal_snr))


def _shifted_tables(betas: Tensor, shift: float, zero_snr: bool) -> tuple[Tensor, Tensor]:
    """(betas, alphas_cumprod), each (T,) float64, after zero terminal SNR and timestep shift."""
    cumprod = (1 - betas).cumprod(0)
    if zero_snr:
        cumprod = tables.zero_terminal_snr(cumprod)
    if shift != 1:
        cumprod = torch.sigmoid(torch.logit(cumprod) - 2 * math.log(shift))
    return (tables.betas_of(cumprod) if zero_snr or shift != 1 else betas), cumprod


def shift_for_tokens(num_tokens: int) -> float:
    """FLUX's timestep shift s = exp(mu), mu linear in the number of image tokens: 256 -> 0.5, 4096 -> 1.15."""
    slope = (1.15 - 0.5) / (4096 - 256)
    return math.exp(0.5 + slope * (num_tokens - 256))


def schedule_of(process: Any, stage: Any, patch: int = 1) -> NoiseSchedule:
    """The schedule of the sections `process` and `train.stage-N` of params.yaml.

    patch: side in pixels of what counts as one image token when the stage's timestep_shift is "tokens".
    """
    shift = stage.timestep_shift
    if shift == "tokens":
        shift = shift_for_tokens((stage.resolution // patch) ** 2)
    return make_schedule(
        process.schedule,
        process.num_train_timesteps,
        timestep_shift=shift,
        hybrid_mix=process.hybrid_mix,
        zero_terminal_snr=process.zero_terminal_snr,
        family=process.family,
    )


def draw_times(u: Tensor, time_sampling: TimeSampling, schedule: NoiseSchedule | None = None) -> Tensor:
    """Maps uniform u in [0, 1] to training times in (0, 1], same shape, float64.

    logit_normal: logit(t) is standard normal (Esser et al. 2024, eq. 19 with m = 0, s = 1): middle noise levels
    more often. schedule: when given, times of a discrete schedule are its timesteps. The shift is the schedule's.
    """
    u = u.double().clamp(SMALLEST_TIME, 1 - SMALLEST_TIME)
    if time_sampling == "uniform":
        t = u
    elif time_sampling == "logit_normal":
        t = torch.sigmoid(torch.special.ndtri(u))
    else:
        raise ValueError(f"time_sampling is '{time_sampling}'; it must be one of {', '.join(get_args(TimeSampling))}")
    return t if schedule is None else schedule.snap(t)
