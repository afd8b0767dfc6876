"""The pictures that are evaluated: one seed's set, drawn for held-out captions, and their files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from shift_diffusion.config import Evaluate
from shift_diffusion.data.store import PreparedData
from shift_diffusion.pictures import save_png, to_pil
from shift_diffusion.process.schedules import NoiseSchedule
from shift_diffusion.progress import progress_bar


class Model(Protocol):
    """What evaluation needs of a model; `sampling.Pipeline` has it.

    network: callable (x_t, log_snr, text, drop) -> prediction.
    """

    network: Callable[..., Tensor]
    schedule: NoiseSchedule
    prediction: str
    resolution: int
    device: torch.device
    conditional: bool

    def sample(self, prompts: Any, seeds: Sequence[int], **how: Any) -> Tensor:
        """uint8 (N, 3, R, R), see `sampling.Pipeline.sample`."""
        ...


SEED_STRIDE = 1_000_000  # picture i of evaluation seed s has seed s * 1,000,000 + i: no two sets share a picture


@dataclass(frozen=True)
class Samples:
    """Generated pictures with what made them.

    pictures: uint8 (n, 3, R, R). seeds: one each. indices: (n,) int64, the held-out pictures whose captions were the
    prompts. prompts: n texts, "" where the model takes none.
    """

    pictures: Tensor
    seeds: list[int]
    indices: Tensor
    prompts: list[str]


def draw_samples(
    model: Model,
    section: Evaluate,
    data: PreparedData,
    seed: int,
    *,
    count: int | None = None,
    sampler: str | None = None,
    num_steps: int | None = None,
    on_step: Callable[[int, float, Tensor, Tensor], None] | None = None,
) -> Samples:
    """Draws `count` pictures (default: evaluate.num_samples) for the captions of the held-out pictures, in turn."""
    count = count or section.num_samples
    held_out = np.asarray(data.split("validation"))
    indices = held_out[np.arange(count) % len(held_out)]
    seeds = [seed * SEED_STRIDE + number for number in range(count)]
    name, steps = sampler or section.sampler, num_steps or section.num_steps
    with progress_bar(count, f"{name}, {steps} steps, seed {seed}") as bar:
        pictures = model.sample(
            data.text(indices) if model.conditional else None,
            seeds,
            sampler=name,
            num_steps=steps,
            guidance_scale=section.guidance_scale if model.conditional else 1.0,
            spacing=section.spacing,
            batch_size=section.batch_size,
            callback=bar.update,
            on_step=on_step,
        )
    prompts = [data.captions[i] if model.conditional else "" for i in indices]
    return Samples(pictures, seeds, torch.from_numpy(indices.astype(np.int64)), prompts)


def save_samples(samples: Samples, folder: str | Path, section: Evaluate) -> None:
    """One PNG a picture, named by its seed, saying in its metadata how to draw it again."""
    folder = Path(folder)
    made_by = {"sampler": section.sampler, "num_steps": section.num_steps, "guidance_scale": section.guidance_scale}
    for picture, seed, prompt in zip(samples.pictures, samples.seeds, samples.prompts, strict=True):
        save_png(to_pil(picture), folder / f"{seed:08d}.png", {"seed": seed, "prompt": prompt, **made_by})
