"""What a stage leaves behind: model folder and report folder, each replaced as a whole, always the same bytes."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from shift_diffusion.files import new_folder, write_json, write_text_atomic
from shift_diffusion.models.saving import save_network
from shift_diffusion.pictures import grid, save_png
from shift_diffusion.plots import line_plot
from shift_diffusion.training.loop import Result

_CURVES = {"loss": "training", "validation_loss": "validation", "validation_loss_q1": "validation, least noise"}


def write_outputs(result: Result, model_folder: Path, report_folder: Path) -> None:
    """model.safetensors (averaged weights), raw.safetensors, config.json; metrics.json, history.csv, two pictures."""
    with new_folder(model_folder) as folder:
        save_network(folder, result.averaged, result.config)
        save_network(folder, result.raw, result.config, weights="raw.safetensors")
    with new_folder(report_folder) as folder:
        write_json(folder / "metrics.json", result.metrics)
        write_text_atomic(folder / "history.csv", result.history.csv())
        save_png(grid(result.samples), folder / "samples.png")
        curves = {label: result.history.series(column) for column, label in _CURVES.items()}
        line_plot(folder / "curves.png", curves, "optimizer step", "loss", model_folder.name, log=True)


def save_sheet(pictures: Tensor, folder: Path, step: int) -> Path:
    """One sheet of pictures (N, 3, R, R) uint8, named by the step."""
    path = folder / f"step-{step:06d}.png"
    save_png(grid(pictures), path)
    return path
