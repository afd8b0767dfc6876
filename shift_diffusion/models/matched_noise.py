"""Averaging 2x2 pixels halves the noise: the arithmetic that lets a network of twice the resolution hold a smaller one.

With x_t = alpha x_0 + sigma eps, the pooled image is alpha x_0' + (sigma / 2) eps', where x_0' is the pooled clean
image and eps' is again unit white noise. So pooled pixels, divided by c, are exactly a noised small image whose log-SNR
is higher by log 4:

    vp    c = sqrt(alpha^2 + sigma^2 / 4)    keeps alpha'^2 + sigma'^2 = 1
    flow  c = alpha + sigma / 2              keeps alpha' + sigma' = 1

Written without a division by alpha or sigma, so nothing is singular at either end of the process.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

FAMILIES = ("vp", "flow")
PREDICTIONS = ("eps", "x0", "v", "velocity")
LOG_SNR_GAIN = math.log(4.0)  # of averaging four pixels


def coefficients(log_snr: Tensor, family: str) -> tuple[Tensor, Tensor]:
    """alpha and sigma of a noise level: vp alpha^2 = sigmoid(log_snr), flow alpha = sigmoid(log_snr / 2).

    Args:
        log_snr: log(alpha^2 / sigma^2), any shape.
        family: "vp" (alpha^2 + sigma^2 = 1) or "flow" (alpha + sigma = 1).
    """
    if family == "vp":
        return torch.sigmoid(log_snr).sqrt(), torch.sigmoid(-log_snr).sqrt()
    if family == "flow":
        return torch.sigmoid(log_snr / 2), torch.sigmoid(-log_snr / 2)
    raise ValueError(f"family {family!r} is not one of {', '.join(FAMILIES)}")


def pool(x_t: Tensor, log_snr: Tensor, family: str) -> tuple[Tensor, Tensor]:
    """The noised image at half the resolution and the noise level it then has.

    Args:
        x_t: (B, C, H, W), even height and width.
        log_snr: (B,) or (1,) of x_t.

    Returns:
        x_t' (B, C, H/2, W/2) and log_snr', of the shape of log_snr.
    """
    alpha, sigma = coefficients(log_snr, family)
    scale = (alpha.square() + sigma.square() / 4).sqrt() if family == "vp" else alpha + sigma / 2
    return F.avg_pool2d(x_t, 2) / scale.view(-1, 1, 1, 1), log_snr + LOG_SNR_GAIN


def low_frequency(inner: Tensor, x_inner: Tensor, log_snr: Tensor, family: str, prediction: str) -> Tensor:
    """What a prediction for the pooled image says about the full one, still at the small resolution.

    The block means of (x_0, eps) at full resolution are (x_0', eps' / 2); the prediction's own combination of the two
    is put together again from them.

    Args:
        inner: (B, C, h, w) prediction of the inner network for x_inner.
        x_inner: (B, C, h, w) from `pool`.
        log_snr: (B,) or (1,) of the *full* image.

    Returns:
        (B, C, h, w): repeat every pixel 2x2 to have the low-frequency part of the outer prediction.
    """
    if prediction == "x0":
        return inner
    if prediction == "eps":
        return inner / 2
    alpha, sigma = (c.view(-1, 1, 1, 1) for c in coefficients(log_snr, family))
    alpha_in, sigma_in = (c.view(-1, 1, 1, 1) for c in coefficients(log_snr + LOG_SNR_GAIN, family))
    if prediction == "v" and family == "vp":  # v = alpha eps - sigma x_0 (Salimans & Ho 2022)
        eps, x_0 = sigma_in * x_inner + alpha_in * inner, alpha_in * x_inner - sigma_in * inner
        return alpha * eps / 2 - sigma * x_0
    if prediction == "velocity" and family == "flow":  # eps - x_0, with x_0' = x' - sigma' v' and eps' = x' + alpha' v'
        return inner * (alpha_in / 2 + sigma_in) - x_inner / 2
    raise ValueError(f"prediction {prediction!r} does not belong to family {family!r}")


def upsample(x: Tensor) -> Tensor:
    """Every pixel four times: the exact inverse of 2x2 pooling for images that are flat on 2x2 blocks."""
    return F.interpolate(x, scale_factor=2.0, mode="nearest")
