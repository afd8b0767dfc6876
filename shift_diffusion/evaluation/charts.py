"""The pictures of an evaluation: sheets for the eye, charts for the numbers."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shift_diffusion.data.images import to_uint8
from shift_diffusion.data.store import PreparedData
from shift_diffusion.evaluation.neighbors import Neighbors
from shift_diffusion.evaluation.samples import Samples
from shift_diffusion.files import write_text_atomic
from shift_diffusion.pictures import grid, save_png
from shift_diffusion.plots import line_plot

GRID_PICTURES = 24
PAIRS = 8
TRAJECTORIES = 4
MOMENTS = 9  # of a trajectory that are shown


def save_grid(samples: Samples, path: Path) -> None:
    """The first pictures, not the best ones, with their prompts."""
    labels = samples.prompts[:GRID_PICTURES] if any(samples.prompts) else None
    save_png(grid(samples.pictures[:GRID_PICTURES], columns=6, labels=labels, scale=_scale(samples.pictures)), path)


def _scale(pictures: Tensor) -> int:
    return max(1, 128 // pictures.shape[-1])


class Trajectory:
    """Collects what a sampler sees: give `record` as its callback."""

    def __init__(self):
        self.moments: list[tuple[float, Tensor, Tensor]] = []

    def record(self, step: int, t: float, x_t: Tensor, x_0: Tensor) -> None:
        self.moments.append((t, x_t.detach().cpu(), x_0.detach().cpu()))

    def save(self, path: Path) -> None:
        """Two rows a picture: the noisy picture on its way, and under it the estimate of the clean one."""
        chosen = np.linspace(0, len(self.moments) - 1, min(MOMENTS, len(self.moments))).round().astype(int)
        moments = [self.moments[i] for i in dict.fromkeys(chosen.tolist())]
        count = min(TRAJECTORIES, len(moments[0][1]))
        rows = [which[k] for k in range(count) for which in (self._of(moments, 1), self._of(moments, 2))]
        labels = [
            text for _ in range(count) for row in ("t = {:.2f}", "estimate") for text in self._texts(row, moments)
        ]
        cells = to_uint8(torch.cat(rows))
        save_png(grid(cells, columns=len(moments), labels=labels, scale=_scale(cells)), path)

    @staticmethod
    def _texts(form: str, moments: Sequence[tuple]) -> list[str]:
        return [form.format(moment[0]) for moment in moments]

    @staticmethod
    def _of(moments: Sequence[tuple], column: int) -> Tensor:
        return torch.stack([moment[column] for moment in moments], 1)


def save_neighbors(
    samples: Samples, found: Neighbors, train_indices: Tensor, data: PreparedData, resolution: int, path: Path
) -> None:
    """The generated pictures that come nearest to a training picture, each above that picture, nearest first."""
    order = torch.argsort(found.distance, stable=True)[:PAIRS]
    real = data.batch(train_indices[found.index[order]], resolution)
    labels = ["generated"] * len(order) + [f"training, distance {d:.1f}" for d in found.distance[order].tolist()]
    cells = torch.cat([samples.pictures[order], real])
    save_png(grid(cells, columns=len(order), labels=labels, scale=_scale(cells)), path)


def save_spectrum(generated: Tensor, real: Tensor, path: Path) -> None:
    cycles = list(range(1, len(real) + 1))
    series = {"real": (cycles, real.tolist()), "generated": (cycles, generated.tolist())}
    line_plot(path, series, "cycles per picture", "power", "Power spectrum of the brightness", log=True, log_x=True)


def save_psnr(by_level: Mapping[float, float], path: Path) -> None:
    series = {"psnr": (list(by_level), list(by_level.values()))}
    line_plot(path, series, "log-SNR of the input", "dB", "PSNR of the estimate of held-out pictures", markers=True)


def save_fid_against_steps(table: Sequence[Mapping[str, float | str]], name: str, folder: Path) -> None:
    """table: rows of sampler, num_steps, fid, fid_std; as fid_vs_steps.csv and .png."""
    text = io.StringIO()
    writer = csv.DictWriter(text, ["sampler", "num_steps", "fid", "num_samples"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    write_text_atomic(folder / "fid_vs_steps.csv", text.getvalue())
    series = {
        sampler: (
            [r["num_steps"] for r in table if r["sampler"] == sampler],
            [r["fid"] for r in table if r["sampler"] == sampler],
        )
        for sampler in dict.fromkeys(row["sampler"] for row in table)
    }
    line_plot(
        folder / "fid_vs_steps.png",
        series,
        "steps",
        f"FID ({name})",
        "FID against sampling steps",
        log=True,
        log_x=True,
        markers=True,
    )
