"""What a registered version holds: one folder per variant, and bundle.json with the format version and the defaults.

bundle.json     {"format_version", "defaults": {sampler, num_steps, guidance_scale, spacing}, "model": short hash}
float32/        weights and config of the trained network (models/saving.py)
int8/           what the stage `quantize` has written (a folder per variant), where there is one
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from shift_diffusion.config import ConfigError
from shift_diffusion.files import read_json, write_json
from shift_diffusion.sampling import Pipeline

FORMAT_VERSION = 1
FLOAT, INT8 = "float32", "int8"
VARIANTS = (FLOAT, "static_int8", "dynamic_int8", "weight_int8")
NEEDED = ("model.safetensors", "config.json")  # raw.safetensors is for going on with training, not for pictures


def write_bundle(out: Path, model_folder: Path, int8_folder: Path | None, defaults: dict[str, Any], model: str) -> None:
    """Collects a bundle in the new folder `out`. Raises ConfigError when the trained network isn't complete."""
    missing = [str(model_folder / name) for name in NEEDED if not (model_folder / name).is_file()]
    if missing:
        raise ConfigError([f"{path}: missing; run the training stages first" for path in missing])
    (out / FLOAT).mkdir(parents=True)
    for name in NEEDED:
        shutil.copyfile(model_folder / name, out / FLOAT / name)
    if int8_folder is not None and int8_folder.is_dir():
        shutil.copytree(int8_folder, out / INT8)
    write_json(out / "bundle.json", {"format_version": FORMAT_VERSION, "defaults": defaults, "model": model})


def read_bundle(folder: Path) -> dict[str, Any]:
    """bundle.json. Raises ConfigError for a folder that isn't a bundle, or one of another format version."""
    try:
        content = read_json(folder / "bundle.json")
    except (OSError, ValueError) as error:
        raise ConfigError([f"{folder}: not a model bundle: {error}"]) from error
    version = content.get("format_version") if isinstance(content, dict) else None
    if version != FORMAT_VERSION:
        where = folder / "bundle.json"
        raise ConfigError([f"{where}: format_version {version!r}; this release reads {FORMAT_VERSION}"])
    return content


def load_variant(folder: Path, variant: str, device: str = "cpu") -> Pipeline:
    """A pipeline from a bundle, on any device whatever the weights were trained on.

    Raises: ConfigError for an unknown variant, one this version doesn't have, or one this machine can't run.
    """
    if variant not in VARIANTS:
        raise ConfigError([f"variant: '{variant}' is not allowed; allowed: {', '.join(VARIANTS)}"])
    if variant == FLOAT:
        return Pipeline.load(folder / FLOAT, device)
    from shift_diffusion.quantization.saving import available_variants, load_quantized

    available = available_variants(folder / INT8)
    if variant not in available:
        raise ConfigError([f"variant: this model has no {variant}; it has {', '.join([FLOAT, *available])}"])
    return Pipeline(*load_quantized(folder / INT8, variant))
