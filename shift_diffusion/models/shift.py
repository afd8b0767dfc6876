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

from shift_diffusion.models.shift_chain import DIMS, ShiftFunction
from shift_diffusion.models.shift_convolution import convolve, tent

MAX_KERNEL_REACH = {True: 2, False: 1}  # with one offset for the batch or not; beyond it the chain of moves is faster


def _shift_by_slices(x: Tensor, offset: Tensor, reach: int) -> Tensor:
    """Plain, differentiable tensor operations: what a compiler fuses into one pass, and what can be exported."""
    for axis, dim in enumerate(DIMS):
        size = x.shape[dim]
        padded = F.pad(x, (reach, reach, 0, 0) if dim == 3 else (0, 0, reach, reach), mode="replicate")
        weights = tent(offset[..., axis], reach)[:, :, :, None, None].to(x.dtype).unbind(2)
        x = sum(padded.narrow(dim, 2 * reach - tap, size) * weight for tap, weight in enumerate(weights))
    return x


def shift2d(x: Tensor, offset: Tensor, reach: float = 1.0) -> Tensor:
    """Moves every channel by its own offset, bilinear, border repeated.

    Three ways to the same result: on a CPU a depthwise convolution; on an accelerator, where a convolution of so many
    groups is slow, or for a long reach a chain of unit moves; under a compiler plain operations. For the backward
    they keep at most one copy of x.

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
    if x.device.type == "cpu" and pixels <= MAX_KERNEL_REACH[len(offset) == 1]:
        return convolve(x, offset.clamp(-pixels, pixels), pixels)
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
