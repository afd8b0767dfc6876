"""The learning rate as a pure function of the optimizer step: warm-up, cosine, final drop.

Presets for full-size data sets, as `params.yaml` values (an epoch is num_images / total batch steps):

| total batch (batch_size * accumulation * processes) | lr   | warmup   |
| ---                                                 | ---  | ---      |
| 256                                                 | 1e-4 | 5 epochs |
| 512                                                 | 5e-5 | 3 epochs |

The cosine stops at COSINE_FLOOR of the peak, not at 0: the next stage goes on from these weights, and what a high
rate leaves as noise in the weights is averaged out by the EMA.
"""

from __future__ import annotations

import math
from typing import Protocol

COSINE_FLOOR = 0.3  # share of `lr` at the end of the cosine
FINAL_LR = 0.1  # share of `lr` in the final phase, where `final_drop` is on
FINAL_PHASE = 10  # the final phase is one part in so many of the steps


class LearningRateSection(Protocol):
    """What `train.stage-N` says about the learning rate."""

    lr: float
    warmup: int
    final_drop: bool
    steps: int


def learning_rate(step: int, section: LearningRateSection, num_steps: int | None = None) -> float:
    """Learning rate of optimizer step `step`, 0 to num_steps - 1; > 0 everywhere, the peak `lr` is met once.

    Args:
        num_steps: length of the stage where it isn't `section.steps` (several processes).

    Raises:
        ValueError: when the step is outside the stage or the warm-up fills it.
    """
    total = section.steps if num_steps is None else num_steps
    if not 0 <= step < total:
        raise ValueError(f"step {step} is outside the stage's steps 0 to {total - 1}")
    if section.warmup >= total:
        raise ValueError(f"warmup of {section.warmup} steps must be shorter than the stage's {total} steps")
    if section.final_drop and step >= final_phase_start(total):
        return section.lr * FINAL_LR
    if step < section.warmup:
        return section.lr * (step + 1) / (section.warmup + 1)
    progress = (step - section.warmup) / max(total - 1 - section.warmup, 1)
    return section.lr * (COSINE_FLOOR + (1 - COSINE_FLOOR) * (1 + math.cos(math.pi * progress)) / 2)


def final_phase_start(total: int) -> int:
    """First step of the final phase; it is never empty, and never the whole stage."""
    return max(total - max(total // FINAL_PHASE, 1), 1)
