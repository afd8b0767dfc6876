"""The one road between 8-bit pictures and the network's numbers, for real and generated pictures alike."""

from __future__ import annotations

import torch
from torch import Tensor


def to_float(images: Tensor) -> Tensor:
    """uint8 [0, 255] of any shape and device to float32 [-1, 1]; keeps the memory layout."""
    if images.dtype != torch.uint8:
        raise TypeError(f"expected uint8 pictures, got {images.dtype}")
    return images.to(torch.float32).mul_(1 / 127.5).sub_(1.0)


def to_uint8(x: Tensor) -> Tensor:
    """Float [-1, 1] of any shape to uint8 [0, 255]: clamped first, so that nothing wraps round, then rounded.

    `to_uint8(to_float(images))` is `images`, for all 256 values.

    Raises:
        ValueError: for values that aren't finite; they have no color.
    """
    if not torch.isfinite(x).all():
        raise ValueError("pictures hold values that aren't finite")
    return x.detach().float().clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)
