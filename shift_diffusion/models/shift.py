"""The shift operator: every channel of a feature map moves by its own learned, sub-pixel offset.

Unit and sign: pixels of the level the operator sits on; positive x moves content to the right, positive y down. What
comes in over the border is the border pixel repeated. Values between pixels are bilinear, so the operator is a
depthwise convolution with tent weights, separable in x and y:

    out[h, w] = sum_ij tent(i - y) tent(j - x) in[h - i, w - j],    tent(u) = max(0, 1 - |u|)

An offset of zero is the identity to the bit.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shift_diffusion.models.shift_kernel import DIMS, ShiftFunction

MAX_KERNEL_REACH = 2  # beyond 5x5 taps the chain of unit moves is faster than the convolution


def _tent(offset: Tensor, reach: int) -> Tensor:
    """(..., 2 reach + 1) weights of the neighbors at distance -reach .. reach.

    `maximum` shares the gradient at its kinks between both sides, so an offset of zero learns.
    """
    taps = torch.arange(-reach, reach + 1, device=offset.device, dtype=offset.dtype)
    weights = 1 - (taps - offset.unsqueeze(-1)).abs()
    return torch.maximum(weights, torch.zeros_like(weights))


def _shift_by_slices(x: Tensor, offset: Tensor, reach: int) -> Tensor:
    """Plain, differentiable tensor operations: what a compiler fuses into one pass, and what can be exported."""
    for axis, dim in enumerate(DIMS):
        size = x.shape[dim]
        padded = F.pad(x, (reach, reach, 0, 0) if dim == 3 else (0, 0, reach, reach), mode="replicate")
        weights = _tent(offset[..., axis], reach)[:, :, :, None, None].to(x.dtype).unbind(2)
        x = sum(padded.narrow(dim, 2 * reach - tap, size) * weight for tap, weight in enumerate(weights))
    return x


def _shift_by_convolution(x: Tensor, offset: Tensor, reach: int) -> Tensor:
    """One offset for the whole batch: a depthwise convolution, the fastest way on a CPU."""
    taps = _tent(-offset[0], reach).to(x.dtype)  # a convolution layer correlates: its kernel is mirrored
    kernel = taps[:, 1, :, None] * taps[:, 0, None, :]
    return F.conv2d(F.pad(x, (reach,) * 4, mode="replicate"), kernel.unsqueeze(1), groups=x.shape[1])


def shift2d(x: Tensor, offset: Tensor, reach: float = 1.0) -> Tensor:
    """Moves every channel by its own offset, bilinear, border repeated.

    Three ways to the same result: in training a function that keeps only x and the offsets for its backward; in
    sampling on a CPU, with one offset for the batch, a depthwise convolution; under a compiler plain operations.

    Args:
        x: (B, C, H, W) features.
        offset: (B or 1, C, 2) in pixels, (x, y); positive x is right, positive y down. (1, C, 2) = one for the batch.
        reach: the largest |offset| that occurs, rounded up to whole pixels; what is beyond is cut off.

    Returns:
        (B, C, H, W), the dtype and layout of x.

    Raises:
        ValueError: offset of another shape.
    """
    if offset.dim() != 3 or offset.shape[0] not in (1, x.shape[0]) or offset.shape[1:] != (x.shape[1], 2):
        raise ValueError(f"offset must be (B or 1, C, 2) for x {tuple(x.shape)}, not {tuple(offset.shape)}")
    pixels = math.ceil(reach)
    if torch.compiler.is_compiling():
        return _shift_by_slices(x, offset, pixels)
    learning = torch.is_grad_enabled() and (x.requires_grad or offset.requires_grad)
    if not learning and len(offset) == 1 and x.device.type == "cpu" and pixels <= MAX_KERNEL_REACH:
        return _shift_by_convolution(x, offset.clamp(-pixels, pixels), pixels)
    return ShiftFunction.apply(x, offset, pixels)


class SpatialShift2d(nn.Module):
    """Learned offsets per channel, bounded by the level's reach, scaled by a gate that depends on the noise level.

    offset = reach * tanh(raw * gate), gate = 1 + linear(embedding): zero raw or zero gate is the identity.

    Args:
        channels: C.
        reach: bound of |offset| in pixels of this level.
        embedding_dim: size of the noise-level embedding; 0 = no gate.
        init_scale: initial offsets are uniform within this share of the reach.
    """

    def __init__(self, channels: int, reach: float, embedding_dim: int = 0, init_scale: float = 0.0):
        super().__init__()
        self.reach = float(reach)
        share = (2 * torch.rand(channels, 2) - 1) * min(init_scale, 0.99)
        self.raw = nn.Parameter(torch.atanh(share))
        self.gate = nn.Linear(embedding_dim, channels) if embedding_dim else None
        if self.gate is not None:
            nn.init.zeros_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)

    def relative_offsets(self, embedding: Tensor | None) -> Tensor:
        """(B or 1, C, 2) in units of the reach, within (-1, 1)."""
        raw = self.raw.unsqueeze(0)
        if self.gate is not None:
            raw = raw * (1 + self.gate(embedding)).unsqueeze(-1)
        return torch.tanh(raw.float())

    def forward(self, x: Tensor, embedding: Tensor | None = None) -> Tensor:
        """x (B, C, H, W); embedding (B or 1, E) of the noise level, needed with a gate."""
        return shift2d(x, self.reach * self.relative_offsets(embedding), self.reach)

    def penalty(self) -> Tensor:
        """Mean square of the offsets in units of the reach, without the gate; a scalar."""
        return torch.tanh(self.raw).square().mean()
