"""An int8 network on disk: `weights.safetensors` with the recipe in its header, and the recipe as JSON to read.

The recipe holds the network's shape, its process and the names of the int8 layers, so neither the float weights nor
any other file is needed to load. Nothing is pickled, every weight is there once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from shift_diffusion.config import ConfigError
from shift_diffusion.files import write_bytes_atomic, write_json
from shift_diffusion.models.unet import network_from_config
from shift_diffusion.quantization import dynamic_int8, static_int8, weight_int8
from shift_diffusion.quantization.converted import Converted

FORMAT_VERSION = 1
WEIGHTS, RECIPE = "weights.safetensors", "recipe.json"
RECIPES = {module.NAME: module for module in (static_int8, dynamic_int8, weight_int8)}
MODEL_KEYS = ("network", "process", "text", "resolution")  # of the float model's config.json


def save_quantized(
    folder: str | Path, variant: str, converted: Converted, config: Mapping[str, Any], **about: Any
) -> int:
    """Writes folder/<variant>/ and returns the size of its weights file in bytes.

    Args:
        config: of the float model (models/saving.py).
        about: JSON-able notes that travel with the recipe, e.g. how it was calibrated.
    """
    if variant not in RECIPES:
        raise ValueError(f"variant {variant!r} is not one of {', '.join(RECIPES)}")
    recipe = {
        "format_version": FORMAT_VERSION,
        "variant": variant,
        "model": {key: config[key] for key in MODEL_KEYS},
        "int8_layers": converted.int8_layers,
        "details": converted.details,
        "about": about,
    }
    data = save(converted.state, metadata={"recipe": json.dumps(recipe, sort_keys=True)})  # one key: its order is fixed
    write_bytes_atomic(Path(folder) / variant / WEIGHTS, data)
    recipe["sha256"] = hashlib.sha256(data).hexdigest()
    write_json(Path(folder) / variant / RECIPE, recipe)
    return len(data)


def load_quantized(folder: str | Path, variant: str = "static_int8") -> tuple[nn.Module, dict[str, Any]]:
    """An int8 network in eval mode on the CPU, called like the float one, and the model's config.

    It gives the same bits as the network that was saved. The config serves `sampling.Pipeline`.

    Args:
        folder: what the stage `quantize` has written, with one folder per variant.

    Raises:
        ConfigError: a file is missing, unreadable, of another version, doesn't fit its recipe, or was changed.
    """
    if variant not in RECIPES:
        raise ConfigError([f"variant: '{variant}' is unknown; allowed: {', '.join(RECIPES)}"])
    path = Path(folder) / variant / WEIGHTS
    recipe, state = _read(path)
    if recipe.get("variant") != variant:
        raise ConfigError([f"{path}: holds '{recipe.get('variant')}', not '{variant}'"])
    config = recipe["model"]
    network = network_from_config(config["network"]).eval().requires_grad_(False)
    known = {name for name, _ in network.named_modules()}
    problems = [f"{path}: the network has no layer '{name}'" for name in recipe["int8_layers"] if name not in known]
    if problems:
        raise ConfigError(problems)
    return RECIPES[variant].restore(network, recipe["int8_layers"], recipe["details"], state, str(path)), config


def available_variants(folder: str | Path) -> list[str]:
    """Names of the variants that lie in `folder`."""
    return [variant for variant in RECIPES if (Path(folder) / variant / WEIGHTS).is_file()]


def read_recipe(folder: str | Path, variant: str) -> dict[str, Any]:
    """The recipe alone, from the header of the weights. Raises ConfigError as `load_quantized`."""
    return _read(Path(folder) / variant / WEIGHTS, with_state=False)[0]


def _read(path: Path, with_state: bool = True) -> tuple[dict[str, Any], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            recipe = json.loads((file.metadata() or {})["recipe"])
            state = {name: file.get_tensor(name) for name in file.keys()} if with_state else {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ConfigError([f"{path}: {error}"]) from error
    except (KeyError, ValueError) as error:
        raise ConfigError([f"{path}: holds no readable recipe ({error})"]) from error
    if recipe.get("format_version") != FORMAT_VERSION:
        found = recipe.get("format_version")
        raise ConfigError([f"{path}: format_version {found!r}; this release reads {FORMAT_VERSION}"])
    _check_copy(path, recipe)
    return recipe, state


def _check_copy(path: Path, recipe: dict[str, Any]) -> None:
    """recipe.json is for reading; when it was edited or belongs to other weights, neither can be trusted."""
    copy = path.with_name(RECIPE)
    if not copy.is_file():
        return
    try:
        content = json.loads(copy.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError([f"{copy}: {error}"]) from error
    digest = content.pop("sha256", None)
    if content != recipe or digest != hashlib.sha256(path.read_bytes()).hexdigest():
        raise ConfigError([f"{copy}: does not belong to {path.name} beside it; run `dvc repro quantize`"])
