"""Tables of the discrete (DDPM) schedules: beta_t and alphas_cumprod_t for t = 0..T-1, all float64.

The three ramps (`linear`, `cosine_beta`, `hybrid`) share their end points, given for T = 1000 and scaled
by 1000 / T, so that the noise at the last timestep does not depend on T.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

BETA_MIN, BETA_MAX = 1e-4, 2e-2  # of T = 1000; Ho et al. 2020, section 4
BETA_LIMIT = 0.999  # Nichol & Dhariwal 2021, below eq. 17: no step may erase the picture completely
SMALLEST_T = round(1000 * BETA_MAX)  # with fewer timesteps the scaled ramp would pass 1


def hybrid_level(u: Tensor, mix: float) -> Tensor:
    """Noise level s(u) = mix * u + (1 - mix) * (1 - cos(pi u / 2)): 0 at u = 0, 1 at u = 1, rising.

    u: any shape in [0, 1], float64. mix: weight of the straight line, in [0, 1]; 1 gives u itself to the bit.
    """
    if not 0 <= mix <= 1:
        raise ValueError(f"hybrid_mix is {mix}; it must lie in [0, 1]")
    return mix * u + (1 - mix) * (1 - torch.cos(u * (math.pi / 2)))


def _ramp(level: Tensor) -> Tensor:
    """Betas from BETA_MIN to BETA_MAX along `level` (T,) in [0, 1]."""
    return ((BETA_MIN + (BETA_MAX - BETA_MIN) * level) * (1000 / len(level))).clamp(max=BETA_LIMIT)


def _steps(num_timesteps: int) -> Tensor:
    return torch.arange(num_timesteps, dtype=torch.float64)


def linear_betas(num_timesteps: int) -> Tensor:
    """Ho et al. 2020: a straight line from BETA_MIN to BETA_MAX."""
    return _ramp(_steps(num_timesteps) / (num_timesteps - 1))


def cosine_ramp_betas(num_timesteps: int) -> Tensor:
    """`cosine_beta`: beta itself follows half a cosine; not the cosine schedule of `cosine_betas`."""
    return _ramp((1 - torch.cos(math.pi * _steps(num_timesteps) / num_timesteps)) / 2)


def hybrid_betas(num_timesteps: int, mix: float) -> Tensor:
    """Betas along `hybrid_level`; mix = 1 equals `linear_betas` to the bit."""
    return _ramp(hybrid_level(_steps(num_timesteps) / (num_timesteps - 1), mix))


def cosine_betas(num_timesteps: int) -> Tensor:
    """Nichol & Dhariwal 2021 eq. 17, clipped at BETA_LIMIT."""
    position = torch.arange(num_timesteps + 1, dtype=torch.float64) / num_timesteps
    level = torch.cos((position + 0.008) / 1.008 * (math.pi / 2)) ** 2
    return (1 - level[1:] / level[:-1]).clamp(max=BETA_LIMIT)


def betas_of(alphas_cumprod: Tensor) -> Tensor:
    """beta_t = 1 - alphas_cumprod_t / alphas_cumprod_(t-1), the inverse of the cumulated product; (T,) float64."""
    before = torch.cat([alphas_cumprod.new_ones(1), alphas_cumprod[:-1]])
    return 1 - alphas_cumprod / before


def zero_terminal_snr(alphas_cumprod: Tensor) -> Tensor:
    """Lin et al. 2023, algorithm 1: shift and scale sqrt(alphas_cumprod) so that the last is 0, the first kept."""
    root = alphas_cumprod.sqrt()
    return ((root - root[-1]) * (root[0] / (root[0] - root[-1]))) ** 2
