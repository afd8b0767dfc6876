"""Augmentation of a training batch: flip, small moves, color jitter; each a pure function of the sample's number.

Works on uint8 batches and gives uint8 back, so that augmented and plain pictures go on by the same road.
Never used for reference statistics or validation.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from shift_diffusion.config import Augment


def augment(images: Tensor, section: Augment, seed: int, stage: int, sample_indices: np.ndarray | Tensor) -> Tensor:
    """Augments a batch.

    Args:
        images: (B, 3, R, R) uint8.
        section: flip (bool), hsv (largest relative change), shift (largest translation, share of the side).
        seed, stage: of the run.
        sample_indices: (B,) number of each sample in the stage, counted over all steps and processes.

    Returns:
        (B, 3, R, R) uint8; `images` itself when everything is off. What happens to a sample depends on
        (seed, stage, its number) alone: not on batch size, order or number of processes.
    """
    if not (section.flip or section.hsv or section.shift):
        return images
    draws = uniforms(seed, stage, np.asarray(sample_indices), 6)
    if section.flip:
        images = torch.where(draws[:, 0, None, None, None] < 0.5, images.flip(-1), images)
    if section.shift:
        images = _translate(images, (2 * draws[:, 1:3] - 1) * section.shift)
    if section.hsv:
        images = _jitter(images, (2 * draws[:, 3:6] - 1) * section.hsv)
    return images.contiguous(memory_format=torch.channels_last)


def uniforms(seed: int, stage: int, indices: np.ndarray, count: int) -> Tensor:
    """(B, count) float32 in [0, 1), a hash of (seed, stage, index, column): no generator, no state."""
    with np.errstate(over="ignore"):  # the arithmetic is meant modulo 2^64
        start = _mix(_mix(np.uint64(seed) + _GOLDEN) + np.uint64(stage))
        rows = _mix(start + indices.astype(np.uint64) * _GOLDEN)
        values = _mix(rows[:, None] + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN)
    return torch.from_numpy((values >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-24))


_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def _mix(values: np.ndarray) -> np.ndarray:
    """The finalizer of SplitMix64 (Steele, Lea & Flood 2014, "Fast splittable pseudorandom number generators")."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _translate(images: Tensor, offsets: Tensor) -> Tensor:
    """Moves by whole pixels, offsets (B, 2) in shares of the side; what comes in repeats the border."""
    side = images.shape[-1]
    pixels = torch.round(offsets * side).long()
    grid = torch.arange(side)
    x = (grid[None] - pixels[:, :1]).clamp(0, side - 1)  # (B, R) source columns
    y = (grid[None] - pixels[:, 1:]).clamp(0, side - 1)
    batch = torch.arange(len(images))[:, None, None]
    return images.permute(0, 2, 3, 1)[batch, y[:, :, None], x[:, None, :]].permute(0, 3, 1, 2)


def _jitter(images: Tensor, amounts: Tensor) -> Tensor:
    """Hue, saturation and value changed by amounts (B, 3): hue in turns, the others relative.

    Done in YIQ, where hue is an angle: one 3x3 matrix per picture instead of a conversion per pixel.
    """
    hue, saturation, value = amounts.double().unbind(1)
    angle, zero, one = 2 * torch.pi * hue, torch.zeros_like(hue), torch.ones_like(hue)
    cos, sin = torch.cos(angle) * (1 + saturation), torch.sin(angle) * (1 + saturation)
    turn = torch.stack([one, zero, zero, zero, cos, -sin, zero, sin, cos], dim=1).view(-1, 3, 3)
    matrix = (torch.linalg.inv(_YIQ) @ turn @ _YIQ) * (1 + value)[:, None, None]
    changed = functional.conv2d(
        images.reshape(1, -1, *images.shape[2:]).float(), matrix.float().reshape(-1, 3, 1, 1), groups=len(images)
    )
    return changed.view(images.shape).round_().clamp_(0, 255).to(torch.uint8)


_YIQ = torch.tensor(  # NTSC, of RGB
    [[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]], dtype=torch.float64
)
