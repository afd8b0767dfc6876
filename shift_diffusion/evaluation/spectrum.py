"""Power over spatial frequency: where generated pictures are smoother, or noisier, than real ones."""

from __future__ import annotations

import torch
from torch import Tensor

from shift_diffusion.data.images import to_float

LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601


def power_spectrum(images: Tensor) -> Tensor:
    """Mean power of the brightness on rings of equal frequency.

    Args:
        images: uint8 (N, 3, R, R).

    Returns:
        (R // 2,) float64: entry k is the mean power at k + 1 cycles a picture, over the ring and the pictures. A Hann
        window keeps the jump between opposite borders out of the high frequencies.
    """
    side = images.shape[-1]
    luma = torch.einsum("nchw,c->nhw", to_float(images), images.new_tensor(LUMA, dtype=torch.float32)).double()
    window = torch.hann_window(side, periodic=True, dtype=torch.float64)
    centered = luma - luma.mean((1, 2), keepdim=True)
    power = torch.fft.fft2(centered * window[:, None] * window).abs().square().mean(0)
    frequency = torch.fft.fftfreq(side, 1 / side, dtype=torch.float64)
    ring = (frequency[:, None].square() + frequency.square()).sqrt().round().long()
    inside = (ring >= 1) & (ring <= side // 2)
    sums = torch.zeros(side // 2 + 1, dtype=torch.float64).index_add_(0, ring[inside], power[inside])
    counts = torch.bincount(ring[inside], minlength=side // 2 + 1)
    return (sums / counts.clamp(min=1))[1:]


def high_frequency_ratio(generated: Tensor, real: Tensor) -> float:
    """Power above half the highest frequency, generated to real: below 1 is too smooth, above 1 noisy.

    Args:
        generated, real: of `power_spectrum`, same length.
    """
    upper = slice(len(real) // 2, None)
    tiny = 1e-12  # flat pictures have no power at all
    return float((generated[upper].sum() + tiny) / (real[upper].sum() + tiny))
