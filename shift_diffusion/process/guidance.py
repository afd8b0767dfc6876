"""Classifier-free guidance (Ho & Salimans 2022) and the pairs of conditions it needs.

A condition is any NamedTuple of tokens (B, L, D), mask (B, L) bool and pooled (B, D).
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def guide(conditional: Tensor, unconditional: Tensor, scale: float) -> Tensor:
    """u + scale (c - u), any shape. scale 1 gives c and 0 gives u to the bit.

    The same for estimates of x_0, eps, v and velocity: each is affine in the others and the weights sum to 1.
    """
    if scale == 1:
        return conditional
    if scale == 0:
        return unconditional
    return unconditional + scale * (conditional - unconditional)


def _pad(condition: Any, length: int) -> Any:
    tokens, mask, pooled = condition
    missing = length - tokens.shape[1]
    return type(condition)(F.pad(tokens, (0, 0, 0, missing)), F.pad(mask, (0, missing)), pooled)


def join(first: Any, second: Any) -> Any:
    """Both conditions in one batch of B1 + B2; the shorter is padded with masked tokens."""
    length = max(first.tokens.shape[1], second.tokens.shape[1])
    pairs = zip(_pad(first, length), _pad(second, length), strict=True)
    return type(first)(*(torch.cat(pair) for pair in pairs))
