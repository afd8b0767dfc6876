"""How much of a held-out picture a model can tell from its noised version, noise level by noise level."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from shift_diffusion.data.images import to_float
from shift_diffusion.process.forward import add_noise
from shift_diffusion.process.schedules import NoiseSchedule

LOG_SNR_LEVELS = (-4.0, -2.0, 0.0, 2.0, 4.0)  # from hardly anything to be seen, to hardly any noise
_SMALLEST_ERROR = 1e-10  # 106 dB: equal pictures have no finite ratio


def psnr(estimate: Tensor, x_0: Tensor) -> Tensor:
    """(B,) decibels of pictures in [-1, 1], whose range is 2."""
    error = (estimate.clamp(-1, 1) - x_0).double().square().mean((1, 2, 3))
    return 10 * torch.log10(4 / error.clamp(min=_SMALLEST_ERROR))


@torch.no_grad()
def psnr_by_noise_level(
    denoise_of: Callable[[slice], Callable[[Tensor, float], Tensor]],
    images: Tensor,
    schedule: NoiseSchedule,
    *,
    batch_size: int = 64,
    seed: int = 0,
) -> dict[float, float]:
    """Mean PSNR of x_0 estimates at fixed log-SNR levels, with the same noise for every model.

    Levels are log-SNRs, not times: models with different schedules see the same noise.

    Args:
        denoise_of: gives `denoise(x_t, t) -> x_0` for a slice of the pictures (their conditions differ).
        images: uint8 (N, 3, R, R) held-out pictures.

    Returns:
        log_snr -> decibels, means over the pictures.
    """
    noise = torch.randn(images.shape, generator=torch.Generator().manual_seed(seed))
    times = schedule.time_of(torch.tensor(LOG_SNR_LEVELS)).tolist()
    found: dict[float, list[Tensor]] = {level: [] for level in LOG_SNR_LEVELS}
    for start in range(0, len(images), batch_size):
        part = slice(start, start + batch_size)
        x_0, denoise = to_float(images[part]).contiguous(memory_format=torch.channels_last), denoise_of(part)
        for level, t in zip(LOG_SNR_LEVELS, times, strict=True):
            x_t = add_noise(x_0, noise[part], float(schedule.alpha(t)), float(schedule.sigma(t)))
            found[level].append(psnr(denoise(x_t, t).cpu(), x_0))
    return {level: float(torch.cat(values).mean()) for level, values in found.items()}
