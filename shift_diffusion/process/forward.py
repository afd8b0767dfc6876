"""All identities between a noised picture and what a network may predict about it.

x_t = alpha x_0 + sigma eps, for any alpha, sigma (neither family is assumed):

- `eps`: the noise.
- `x0`: the picture.
- `v` = alpha eps - sigma x_0 (Salimans & Ho 2022, appendix D).
- `velocity` = eps - x_0, which is dx_t/dt of alpha = 1 - t, sigma = t (Liu et al. 2022, eq. 1).

The sign of `velocity` follows the project's one direction of time: t grows with noise.
Pictures are (B, C, H, W); alpha and sigma are floats, (B,) or broadcastable tensors of any float dtype.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor

Prediction = Literal["eps", "x0", "v", "velocity"]
Coefficient = Tensor | float


def _unknown(prediction: str) -> ValueError:
    return ValueError(f"prediction '{prediction}' is unknown; there are {', '.join(get_args(Prediction))}")


def spread(coefficient: Coefficient, like: Tensor) -> Coefficient:
    """A (B,) coefficient as (B, 1, 1, 1) of `like`'s dtype and device; floats and full tensors pass through."""
    if not isinstance(coefficient, Tensor):
        return coefficient
    coefficient = coefficient.to(device=like.device, dtype=like.dtype)
    return coefficient.reshape(-1, *[1] * (like.dim() - 1)) if coefficient.dim() == 1 else coefficient


def add_noise(x_0: Tensor, eps: Tensor, alpha: Coefficient, sigma: Coefficient) -> Tensor:
    """x_t = alpha x_0 + sigma eps (Ho et al. 2020, eq. 4 with alpha = sqrt(alphas_cumprod))."""
    return spread(alpha, x_0) * x_0 + spread(sigma, x_0) * eps


def target(prediction: Prediction, x_0: Tensor, eps: Tensor, alpha: Coefficient, sigma: Coefficient) -> Tensor:
    """What a network with this prediction should give for x_t = alpha x_0 + sigma eps."""
    if prediction == "eps":
        return eps
    if prediction == "x0":
        return x_0
    if prediction == "v":
        return spread(alpha, x_0) * eps - spread(sigma, x_0) * x_0
    if prediction == "velocity":
        return eps - x_0
    raise _unknown(prediction)


def to_x0(prediction: Prediction, output: Tensor, x_t: Tensor, alpha: Coefficient, sigma: Coefficient) -> Tensor:
    """The estimate of x_0 that an output stands for. `eps` needs alpha > 0."""
    alpha, sigma = spread(alpha, x_t), spread(sigma, x_t)
    if prediction == "eps":
        return (x_t - sigma * output) / alpha
    if prediction == "x0":
        return output
    if prediction == "v":
        return (alpha * x_t - sigma * output) / (alpha**2 + sigma**2)
    if prediction == "velocity":
        return (x_t - sigma * output) / (alpha + sigma)
    raise _unknown(prediction)


def to_eps(prediction: Prediction, output: Tensor, x_t: Tensor, alpha: Coefficient, sigma: Coefficient) -> Tensor:
    """The estimate of eps that an output stands for. `x0` needs sigma > 0."""
    alpha, sigma = spread(alpha, x_t), spread(sigma, x_t)
    if prediction == "eps":
        return output
    if prediction == "x0":
        return (x_t - alpha * output) / sigma
    if prediction == "v":
        return (sigma * x_t + alpha * output) / (alpha**2 + sigma**2)
    if prediction == "velocity":
        return (x_t + alpha * output) / (alpha + sigma)
    raise _unknown(prediction)


def to_prediction(prediction: Prediction, x_0: Tensor, x_t: Tensor, alpha: Coefficient, sigma: Coefficient) -> Tensor:
    """The output that stands for this estimate of x_0: inverse of `to_x0`. All but `x0` need sigma > 0."""
    if prediction == "x0":
        return x_0
    return target(prediction, x_0, to_eps("x0", x_0, x_t, alpha, sigma), alpha, sigma)


def x0_gain(prediction: Prediction, alpha: Tensor, sigma: Tensor) -> Tensor:
    """|d x_0 / d output|, shape of alpha: by how much an error of the output moves the estimate of x_0."""
    if prediction == "eps":
        return sigma / alpha
    if prediction == "x0":
        return torch.ones_like(alpha)
    if prediction == "v":
        return sigma / (alpha**2 + sigma**2)
    if prediction == "velocity":
        return sigma / (alpha + sigma)
    raise _unknown(prediction)
