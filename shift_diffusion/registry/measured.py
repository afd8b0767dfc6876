"""What the pipeline has measured, as the registry stores it: numbers, and the conditions they hold for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shift_diffusion.config import ConfigError, Evaluate
from shift_diffusion.files import read_json
from shift_diffusion.tracking.names import clean_name, flatten
from shift_diffusion.tracking.record import path_md5


def numbers(evaluation: dict[str, Any], benchmark: dict[str, Any]) -> dict[str, float]:
    """All numbers of reports/evaluate/metrics.json and (as benchmark.*) of reports/benchmark/metrics.json.

    Raises: ConfigError for a number that was written as text: it would be left out without a word.
    """
    flat = flatten(evaluation) | flatten(benchmark, "benchmark.")
    quoted = [name for name, value in flat.items() if isinstance(value, str) and _reads_as_number(value)]
    if quoted:
        raise ConfigError([f"{name}: {flat[name]!r} is text; a metric must be a number" for name in quoted])
    return {
        clean_name(name): float(value)
        for name, value in flat.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def conditions(evaluate: Evaluate, evaluation: dict[str, Any], reference: Path, model_folder: Path) -> dict[str, str]:
    """Everything that must be equal before two scores may be compared.

    reference: folder with the feature statistics of the real pictures; its content hash stands for the data set.
    """
    return {
        "num_samples": str(evaluation.get("num_samples", evaluate.num_samples)),
        "seeds": ",".join(map(str, evaluate.seeds)),
        "features": evaluate.features,
        "reference": path_md5(reference) or "missing",
        "resolution": str(read_json(model_folder / "config.json")["resolution"]),
        "sampler": evaluate.sampler,
        "num_steps": str(evaluate.num_steps),
        "spacing": evaluate.spacing,
        "guidance_scale": repr(evaluate.guidance_scale),
    }
