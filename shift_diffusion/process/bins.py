"""Pictures as classes: the output of a network trained with cross-entropy, (B, 3 * K, H, W) logits.

Channel c, bin k is at c * K + k. The K bins are centred at -1, ..., 1 in equal distances, so that black and
white are bins of their own and the expectation reaches them.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def _by_bin(logits: Tensor, num_bins: int) -> Tensor:
    """(B, 3 * K, H, W) -> (B, K, 3, H, W), the class axis where cross_entropy wants it."""
    batch, channels, height, width = logits.shape
    if channels % num_bins:
        raise ValueError(f"{channels} channels of logits can't hold {num_bins} bins per channel")
    return logits.float().view(batch, channels // num_bins, num_bins, height, width).transpose(1, 2)


def bin_logits_to_x0(logits: Tensor, num_bins: int) -> Tensor:
    """The estimate of x_0: expectation over the bins; (B, 3, H, W) float32 in [-1, 1]."""
    probabilities = _by_bin(logits, num_bins).softmax(dim=1)
    centers = torch.linspace(-1, 1, num_bins, device=logits.device)
    return torch.einsum("bkchw,k->bchw", probabilities, centers)


def bins_of(x_0: Tensor, num_bins: int) -> Tensor:
    """Index of the nearest bin, (B, 3, H, W) int64 in 0..K-1; values outside [-1, 1] go to the end bins."""
    return ((x_0.clamp(-1, 1) + 1) * ((num_bins - 1) / 2)).round().long()


def bin_cross_entropy(logits: Tensor, x_0: Tensor, num_bins: int) -> Tensor:
    """-log p(true bin), (B, 3, H, W) float32."""
    return F.cross_entropy(_by_bin(logits, num_bins), bins_of(x_0, num_bins), reduction="none")


def x0_if_logits(output: Tensor, x_t: Tensor) -> Tensor:
    """The output itself, or its expectation where it has K times the channels of x_t."""
    if output.shape[1] == x_t.shape[1]:
        return output
    return bin_logits_to_x0(output, output.shape[1] // x_t.shape[1])
