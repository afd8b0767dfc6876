"""All variants of one network: converted, measured against it on held-out pictures, refused when they are too bad."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from shift_diffusion.config import ConfigError, Quantize
from shift_diffusion.files import new_folder, write_json
from shift_diffusion.quantization import dynamic_int8, static_int8, weight_int8
from shift_diffusion.quantization.calibration import Inputs
from shift_diffusion.quantization.capability import safe_activation_bits
from shift_diffusion.quantization.converted import Converted
from shift_diffusion.quantization.layers import LayerRow, counts, write_layers_csv
from shift_diffusion.quantization.saving import save_quantized
from shift_diffusion.quantization.static_int8 import relative_error

QUALITY = "quality.json"
FLOAT = "float32"
NOISY_LOG_SNR = 0.0  # below: more noise than picture
Score = Callable[[nn.Module], dict[str, float]]  # of pictures drawn with a network, the seeds always the same


def convert(variant: str, network: nn.Module, section: Quantize, batches: Sequence[Inputs]) -> Converted:
    """One variant of `network`, which stays as it is."""
    if variant == static_int8.NAME:
        bits = safe_activation_bits() if section.activation_bits == "auto" else section.activation_bits
        return static_int8.convert(network, batches, section.keep_float, bits)
    recipe = {module.NAME: module for module in (dynamic_int8, weight_int8)}[variant]
    return recipe.convert(network, section.keep_float)


@torch.no_grad()
def prediction_errors(network: nn.Module, converted: nn.Module, batches: Sequence[Inputs]) -> dict[str, float]:
    """Relative errors of the prediction: over all pictures, those with more noise than picture, and the rest."""
    exact = torch.cat([network(*batch) for batch in batches])
    found = torch.cat([converted(*batch) for batch in batches])
    noisy = torch.cat([batch.log_snr for batch in batches]) < NOISY_LOG_SNR
    errors = {"error": relative_error(found, exact)}
    for name, part in (("error_noisy", noisy), ("error_clean", ~noisy)):
        if part.any():
            errors[name] = relative_error(found[part], exact[part])
    return errors


class Quantization:
    """The work of the stage.

    Args:
        network: float, in eval mode, on the CPU.
        config: of its folder.
        batches: for calibration. held_out: for the errors.
        score: fid and kid of a network's pictures.
    """

    def __init__(
        self,
        network: nn.Module,
        config: Mapping[str, Any],
        section: Quantize,
        batches: Sequence[Inputs],
        held_out: Sequence[Inputs],
        score: Score,
    ):
        self.network, self.config, self.section = network, config, section
        self.batches, self.held_out, self.score = batches, held_out, score
        self.rows: dict[str, list[LayerRow]] = {}

    def run(
        self, out: str | Path, layers_csv: str | Path, float_bytes: int, **about: Any
    ) -> dict[str, dict[str, float]]:
        """Writes `out` with a folder per variant and the account of all layers.

        The account is written first: it is what a refusal is answered with.

        Returns:
            variant (and float32) -> numbers.

        Raises:
            ConfigError: a variant passes a limit of the section; `out` is then left as it was.
        """
        metrics = {FLOAT: self.score(self.network) | {"file_mb": float_bytes / 1e6}}
        with new_folder(out) as folder:
            problems: list[str] = []
            for variant in self.section.variants:
                converted = convert(variant, self.network, self.section, self.batches)
                self.rows[variant] = converted.rows
                write_layers_csv(Path(layers_csv), self.rows)
                size = save_quantized(folder, variant, converted, self.config, **about)
                metrics[variant] = self._measure(converted, metrics[FLOAT], size)
                problems += self._beyond_limits(variant, metrics[variant], converted.rows)
            if problems:
                raise ConfigError(problems)
            write_json(folder / QUALITY, {"metrics": metrics, "about": about})
        return metrics

    def _measure(self, converted: Converted, exact: Mapping[str, float], size: int) -> dict[str, float]:
        scores = self.score(converted.network)
        return {
            **prediction_errors(self.network, converted.network, self.held_out),
            **scores,
            "fid_increase": scores["fid"] / exact["fid"] - 1 if exact["fid"] else 0.0,
            "file_mb": size / 1e6,
            "file_ratio": size / 1e6 / exact["file_mb"],
            **counts(converted.rows),
        }

    def _beyond_limits(self, variant: str, found: Mapping[str, float], rows: Sequence[LayerRow]) -> list[str]:
        limits = {"error": ("max_error", "prediction error"), "fid_increase": ("max_fid_increase", "increase of FID")}
        problems = []
        for name, (key, what) in limits.items():
            limit = getattr(self.section, key)
            if not found[name] <= limit:  # also true for NaN
                problems.append(f"{variant}: {what} {found[name]:.4g} is above quantize.{key} {limit:g}{_advice(rows)}")
        return problems


def _advice(rows: Sequence[LayerRow], most: int = 3) -> str:
    measured = sorted((row for row in rows if row.error is not None), key=lambda row: -row.error)[:most]
    if not measured:
        return ""
    named = ", ".join(f"{row.layer} ({row.error:.2g})" for row in measured)
    return f"; least exact layers, candidates for quantize.keep_float: {named}"
