"""Samplers: from noise to pictures by `denoise(x_t, t) -> x_0` alone.

All are written in (alpha, sigma) of the times they visit, so they know no schedule and no network.
The first time is t = 1, the last step lands on the estimate of x_0 itself: no noise is left over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor

from shift_diffusion.process.schedules import Family, NoiseSchedule

Spacing = Literal["uniform", "quadratic", "log_snr"]
Denoise = Callable[[Tensor, float], Tensor]
Callback = Callable[[int, float, Tensor, Tensor], None]  # (step, t, x_t, estimate of x_0)

VISIBLE_LOG_SNR = 10.0  # beyond it a picture is pure noise or clean to the eye: the spacing log_snr stays inside


class Level(NamedTuple):
    """One time on the way, with its coefficients as Python floats (good for any device)."""

    t: float
    alpha: float
    sigma: float

    @property
    def half_log_snr(self) -> float:
        """lambda = log(alpha / sigma) of the DPM-Solver papers; infinite at pure noise and at the clean picture."""
        if self.alpha == 0:
            return -math.inf
        return math.inf if self.sigma == 0 else math.log(self.alpha / self.sigma)


class Path(NamedTuple):
    """What a sampler gets beside the noise."""

    denoise: Denoise
    levels: list[Level]
    eta: float
    draw: Callable[[], Tensor]
    report: Callback


def _fractions(num_steps: int, spacing: Spacing) -> Tensor:
    """(num_steps,) times from 1 down to above 0, equally spaced in t or in sqrt(t)."""
    uniform = 1 - torch.arange(num_steps, dtype=torch.float64) / num_steps
    return uniform if spacing == "uniform" else uniform**2


def _log_snr_times(schedule: NoiseSchedule, num_steps: int) -> Tensor:
    """(num_steps,) times from 1, equally spaced in log_snr over the range where a step can be seen."""
    cleanest = 0.0 if schedule.family == "flow" else 1 / schedule.num_train_timesteps
    low, high = schedule.log_snr(torch.tensor([1.0, cleanest])).clamp(-VISIBLE_LOG_SNR, VISIBLE_LOG_SNR).tolist()
    times = schedule.time_of(torch.linspace(low, high, num_steps, dtype=torch.float64))
    times[0] = 1.0
    return times


def _distinct_timesteps(times: Tensor, num_timesteps: int) -> Tensor:
    """The nearest timesteps of a discrete schedule as times: falling strictly, from 1."""
    rank = torch.arange(len(times) - 1, -1, -1)
    spare = ((times * num_timesteps).round().long() - 1 - rank).flip(0)
    spare = spare.clamp(0, num_timesteps - len(times)).cummax(0).values.flip(0)
    return (spare + rank + 1).double() / num_timesteps


def sampling_times(schedule: NoiseSchedule, num_steps: int, spacing: Spacing = "uniform") -> Tensor:
    """Times of a sampler, (num_steps + 1,) float64, from exactly 1 down to exactly 0.

    A discrete schedule is visited at its own timesteps only, the last one first (Lin et al. 2023, "trailing").
    Raises ValueError for fewer than 1 step and for more steps than a discrete schedule has timesteps.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps is {num_steps}; it must be at least 1")
    if spacing not in get_args(Spacing):
        raise ValueError(f"spacing '{spacing}' is unknown; there are {', '.join(get_args(Spacing))}")
    discrete = schedule.family == "vp"
    if discrete and num_steps > schedule.num_train_timesteps:
        raise ValueError(
            f"{num_steps} steps are more than the {schedule.num_train_timesteps} timesteps of the schedule"
        )
    times = _log_snr_times(schedule, num_steps) if spacing == "log_snr" else _fractions(num_steps, spacing)
    if discrete:
        times = _distinct_timesteps(times, schedule.num_train_timesteps)
    return torch.cat([times, times.new_zeros(1)])


def levels_at(schedule: NoiseSchedule, times: Tensor) -> list[Level]:
    """The levels of falling times; t = 0 is the clean picture exactly, whatever the schedule's limit."""
    columns = (values.tolist() for values in (times, schedule.alpha(times), schedule.sigma(times)))
    return [Level(*row) if row[0] > 0 else Level(0.0, 1.0, 0.0) for row in zip(*columns, strict=True)]


def _ddim(path: Path, x: Tensor) -> Tensor:
    """Song et al. 2021, eq. 12 and 16, for any (alpha, sigma); eta = 1 is ancestral sampling."""
    for step, (now, then) in enumerate(pairwise(path.levels)):
        x_0 = path.denoise(x, now.t)
        path.report(step, now.t, x, x_0)
        if then.sigma == 0:
            return x_0
        eps = (x - now.alpha * x_0) / now.sigma
        fresh = (
            path.eta * then.sigma * math.sqrt(max(1 - (now.alpha * then.sigma / (then.alpha * now.sigma)) ** 2, 0.0))
        )
        x = then.alpha * x_0 + math.sqrt(max(then.sigma**2 - fresh**2, 0.0)) * eps
        if fresh > 0:
            x = x + fresh * path.draw()
    return x


def _ddpm(path: Path, x: Tensor) -> Tensor:
    """Ho et al. 2020, eq. 6 and 7: ancestral sampling with the posterior's own variance."""
    for step, (now, then) in enumerate(pairwise(path.levels)):
        x_0 = path.denoise(x, now.t)
        path.report(step, now.t, x, x_0)
        if then.sigma == 0:
            return x_0
        ratio = now.alpha / then.alpha
        variance = now.sigma**2 - (ratio * then.sigma) ** 2  # of q(x_now | x_then)
        mean = (then.alpha * variance * x_0 + ratio * then.sigma**2 * x) / now.sigma**2
        x = mean + (math.sqrt(variance) * then.sigma / now.sigma) * path.draw()
    return x


def _dpmpp_2m(path: Path, x: Tensor) -> Tensor:
    """DPM-Solver++(2M), Lu et al. 2022, algorithm 2.

    First order where lambda is infinite: after pure noise (the ratio of steps is 0 there) and onto the clean picture.
    """
    before, step_before = None, math.inf
    for step, (now, then) in enumerate(pairwise(path.levels)):
        x_0 = path.denoise(x, now.t)
        path.report(step, now.t, x, x_0)
        if then.sigma == 0:
            return x_0
        width = then.half_log_snr - now.half_log_snr
        estimate = x_0
        if before is not None and math.isfinite(step_before):
            estimate = x_0 + (width / (2 * step_before)) * (x_0 - before)
        shrink = then.sigma / now.sigma
        x = shrink * x + (then.alpha - shrink * now.alpha) * estimate
        before, step_before = x_0, width
    return x


def _euler(path: Path, x: Tensor) -> Tensor:
    """Euler's method on dx/dsigma = velocity = (x - x_0) / sigma (Liu et al. 2022; Esser et al. 2024)."""
    for step, (now, then) in enumerate(pairwise(path.levels)):
        x_0 = path.denoise(x, now.t)
        path.report(step, now.t, x, x_0)
        x = x_0 if then.sigma == 0 else x + (then.sigma - now.sigma) * (x - x_0) / now.sigma
    return x


def _heun(path: Path, x: Tensor) -> Tensor:
    """Heun's method, second order (Karras et al. 2022, algorithm 1): two evaluations a step, one in the last."""
    for step, (now, then) in enumerate(pairwise(path.levels)):
        x_0 = path.denoise(x, now.t)
        path.report(step, now.t, x, x_0)
        if then.sigma == 0:
            return x_0
        width = then.sigma - now.sigma
        slope = (x - x_0) / now.sigma
        guess = x + width * slope
        x = x + width * (slope + (guess - path.denoise(guess, then.t)) / then.sigma) / 2
    return x


SAMPLERS: dict[str, tuple[Callable[[Path, Tensor], Tensor], tuple[Family, ...]]] = {
    "ddpm": (_ddpm, ("vp",)),
    "ddim": (_ddim, ("vp", "flow")),
    "dpmpp_2m": (_dpmpp_2m, ("vp", "flow")),
    "euler": (_euler, ("flow",)),
    "heun": (_heun, ("flow",)),
}


def samplers_for(family: Family) -> tuple[str, ...]:
    """Names of the samplers that fit a schedule of this family."""
    return tuple(name for name, (_, families) in SAMPLERS.items() if family in families)


def check_sampler(name: str, schedule: NoiseSchedule) -> None:
    """Raises ValueError for a sampler that is unknown or doesn't fit what the model was trained on."""
    fitting = samplers_for(schedule.family)
    if name not in fitting:
        fault = f"does not fit a model trained on schedule {schedule.name}" if name in SAMPLERS else "is unknown"
        raise ValueError(f"sampler: '{name}' {fault}; allowed: {', '.join(fitting)}")


def _check_noise(name: str, noise: Tensor, eta: float, generators: Sequence | None) -> None:
    if not 0 <= eta <= 1:
        raise ValueError(f"eta is {eta}; it must lie in [0, 1]")
    if eta and name != "ddim":
        raise ValueError(f"eta is {eta}; only ddim has it, not {name}")
    if (name == "ddpm" or eta) and (generators is None or len(generators) != len(noise)):
        count = "none" if generators is None else len(generators)
        raise ValueError(f"sampler '{name}' draws noise: it needs {len(noise)} generators, one a picture; got {count}")


@torch.no_grad()
def sample(
    name: str,
    denoise: Denoise,
    noise: Tensor,
    schedule: NoiseSchedule,
    num_steps: int,
    *,
    spacing: Spacing = "uniform",
    eta: float = 0.0,
    generators: Sequence[torch.Generator] | None = None,
    callback: Callback | None = None,
) -> Tensor:
    """Pictures from noise, (B, 3, H, W) of noise's dtype.

    noise: standard normal (see `initial_noise`). denoise: called with x_t and t as a float in (0, 1].
    eta: share of fresh noise, `ddim` only. generators: one a picture (see `step_generators`), for ddpm and eta > 0.
    callback(step, t, x_t, x_0): called at every step with the estimate of x_0.
    Raises ValueError for a sampler that doesn't fit the family the model was trained on, and as `sampling_times` does.
    """
    check_sampler(name, schedule)
    _check_noise(name, noise, eta, generators)
    levels = levels_at(schedule, sampling_times(schedule, num_steps, spacing))

    def draw() -> Tensor:
        return _normal(generators, noise.shape[1:]).to(noise)

    return SAMPLERS[name][0](Path(denoise, levels, eta, draw, callback or (lambda *_: None)), noise)


def _normal(generators: Sequence[torch.Generator], shape: Sequence[int]) -> Tensor:
    """Standard normal (B, *shape), row k from generator k only: a picture doesn't depend on its batch."""
    return torch.stack([torch.randn(*shape, generator=generator) for generator in generators])


def initial_noise(seeds: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Standard normal (len(seeds), *shape) float32 on the CPU; row k is a function of seed k and shape alone."""
    return _normal([torch.Generator().manual_seed(seed) for seed in seeds], shape)


def step_generators(seeds: Sequence[int]) -> list[torch.Generator]:
    """Generators for the noise of ddpm and eta > 0, independent of `initial_noise` of the same seeds."""
    return [torch.Generator().manual_seed(seed ^ 0x5EED_0F_57E9) for seed in seeds]
