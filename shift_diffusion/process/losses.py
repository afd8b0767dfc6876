"""The training loss: a weighted sum of terms per picture, on the prediction target and on the x_0 estimate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shift_diffusion.process.bins import bin_cross_entropy, bin_logits_to_x0
from shift_diffusion.process.forward import Prediction, target, to_x0, x0_gain


def min_snr_weight(prediction: Prediction, alpha: Tensor, sigma: Tensor, gamma: float) -> Tensor:
    """Min-SNR-gamma weight of the squared error of an output (Hang et al. 2023, section 3.4); (B,) float32.

    The paper's weight min(SNR, gamma) belongs to the error of x_0; an error of the output counts
    |d x_0 / d output|^2 times as much there. eps: min(1, gamma / SNR), v: min(SNR, gamma) / (SNR + 1),
    velocity: min(SNR, gamma) * sigma^2.
    """
    alpha, sigma = alpha.float(), sigma.float()
    return (alpha / sigma).square().clamp(max=gamma) * x0_gain(prediction, alpha, sigma) ** 2


def velocity_weight(prediction: Prediction, alpha: Tensor, sigma: Tensor, floor: float) -> Tensor:
    """Turns the squared error of any output into that of the velocity it stands for; (B,) float32.

    An error of x_0 is one of 1 / sigma as much in the velocity (v or flow); floor: smallest sigma to divide by. With
    prediction x0 this is the x-prediction of Li & He 2025 ("Back to basics: let denoising generative models denoise"):
    a narrow network need not carry the noise from its input to its output, and flat areas come out flat.
    """
    alpha, sigma = alpha.float(), sigma.float()
    return (x0_gain(prediction, alpha, sigma) / sigma.clamp(min=floor)) ** 2


def gram_matrix(features: Tensor) -> Tensor:
    """Channel correlations (B, C, C) of features (B, C, H, W), over C H W (Johnson et al. 2016, eq. 3)."""
    flat = features.flatten(2)
    return flat @ flat.transpose(1, 2) / flat[0].numel()


def estimate_weight(sigma: Tensor, max_noise: float) -> Tensor:
    """How much an estimate of x_0 is worth, (B,): 1 up to sigma = max_noise, then linearly down to 0 at sigma = 1."""
    if max_noise >= 1:
        return torch.ones_like(sigma)
    return ((1 - sigma) / (1 - max_noise)).clamp(0, 1)


def _mean(values: Tensor) -> Tensor:
    return values.flatten(1).mean(1)


class DenoisingLoss:
    """All losses of the section `loss`, for one kind of prediction.

    section: the weights (config.Loss); terms of weight 0 are not computed.
    perceptual: features(x (B, 3, H, W) float32 in [-1, 1]) -> (B, C, h, w), frozen; for `perceptual` and `gram` only.
    """

    def __init__(self, section: Any, prediction: Prediction, perceptual: Callable[[Tensor], Tensor] | None = None):
        if (section.perceptual or section.gram) and perceptual is None:
            raise ValueError("the losses perceptual and gram need a network of features")
        if section.cross_entropy and prediction != "x0":
            raise ValueError(f"cross_entropy is about bins of x_0; prediction is '{prediction}', it must be x0")
        self.section = section
        self.prediction = prediction
        self.perceptual = perceptual if section.perceptual or section.gram else None

    def __call__(
        self, output: Tensor, x_0: Tensor, eps: Tensor, x_t: Tensor, alpha: Tensor, sigma: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss of each picture and its terms.

        output: (B, 3, H, W), or (B, 3 * num_bins, H, W) logits with cross_entropy, any float dtype, taken as float32.
        x_0, eps, x_t: (B, 3, H, W) float32. alpha, sigma: (B,).
        Returns the weighted sum (B,) float32 and the terms by name, (B,) each, unweighted and detached.
        """
        section = self.section
        alpha, sigma = (value.to(x_0.device, torch.float32).flatten() for value in (alpha, sigma))
        with torch.autocast(x_0.device.type, enabled=False):
            output = output.float()
            terms = self._target_terms(output, x_0, eps, alpha, sigma)
            loss = self._weight(alpha, sigma) * sum(getattr(section, name) * term for name, term in terms.items())
            if self.perceptual is not None:
                estimate = self.x0_estimate(output, x_t, alpha, sigma)
                weight = estimate_weight(sigma, section.perceptual_max_noise)
                extra = self._feature_terms(estimate, x_0)
                loss = loss + weight * sum(getattr(section, name) * term for name, term in extra.items())
                terms |= extra
        return loss, {name: term.detach() for name, term in terms.items()}

    def _weight(self, alpha: Tensor, sigma: Tensor) -> Tensor:
        if self.section.min_snr_gamma:
            return min_snr_weight(self.prediction, alpha, sigma, self.section.min_snr_gamma)
        if self.section.velocity_floor:
            return velocity_weight(self.prediction, alpha, sigma, self.section.velocity_floor)
        return torch.ones_like(alpha)

    def x0_estimate(self, output: Tensor, x_t: Tensor, alpha: Tensor, sigma: Tensor) -> Tensor:
        """The picture an output stands for, clamped to [-1, 1]; (B, 3, H, W) float32."""
        if self.section.cross_entropy:
            return bin_logits_to_x0(output, self.section.num_bins)
        return to_x0(self.prediction, output.float(), x_t, alpha, sigma).clamp(-1, 1)

    def _target_terms(
        self, output: Tensor, x_0: Tensor, eps: Tensor, alpha: Tensor, sigma: Tensor
    ) -> dict[str, Tensor]:
        section, terms = self.section, {}
        if section.cross_entropy:
            terms["cross_entropy"] = _mean(bin_cross_entropy(output, x_0, section.num_bins))
            output = bin_logits_to_x0(output, section.num_bins)
        wanted = target(self.prediction, x_0, eps, alpha, sigma)
        if section.mse:
            terms["mse"] = _mean((output - wanted) ** 2)
        if section.l1:
            terms["l1"] = _mean((output - wanted).abs())
        if section.huber:
            terms["huber"] = _mean(F.huber_loss(output, wanted, reduction="none", delta=section.huber_delta))
        return terms

    def _feature_terms(self, estimate: Tensor, x_0: Tensor) -> dict[str, Tensor]:
        terms = {}
        with torch.no_grad():
            wanted = self.perceptual(x_0.float())
        features = self.perceptual(estimate)
        if self.section.perceptual:
            terms["perceptual"] = _mean((features - wanted).abs())
        if self.section.gram:
            terms["gram"] = ((gram_matrix(features) - gram_matrix(wanted)) ** 2).sum((1, 2))
        return terms
