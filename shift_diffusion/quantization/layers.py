"""Which layers become int8, and why the others do not: one row for every layer with a weight matrix or kernel."""

from __future__ import annotations

import csv
import fnmatch
import io
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from torch import nn
from torch.nn.modules.conv import _ConvNd

from shift_diffusion.config import ConfigError
from shift_diffusion.files import write_text_atomic


@dataclass
class LayerRow:
    """layer: its name in the network. kind: class. shape: of the weight, as 64x3x3x3. int8: quantized or not.

    reason: why not, empty when it is. error: relative error of the layer's output in calibration, None if not measured.
    """

    layer: str
    kind: str
    shape: str
    int8: bool
    reason: str = ""
    error: float | None = None


def weight_layers(network: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Every convolution (transposed too) and linear layer once, under its first name."""
    return ((name, layer) for name, layer in network.named_modules() if isinstance(layer, (_ConvNd, nn.Linear)))


def plan(network: nn.Module, keep_float: Sequence[str], kinds: tuple[type[nn.Module], ...]) -> list[LayerRow]:
    """One row per layer: int8 for exactly the given kinds, unless a pattern of `keep_float` names it.

    Raises:
        ConfigError: a pattern that names no layer (a typing error would silently quantize what it should keep).
    """
    named = list(weight_layers(network))
    _refuse_idle_patterns([name for name, _ in named], keep_float)
    return [
        LayerRow(name, type(layer).__name__, "x".join(map(str, layer.weight.shape)), not reason, reason)
        for name, layer in named
        for reason in [_reason(name, layer, keep_float, kinds)]
    ]


def _reason(name: str, layer: nn.Module, keep_float: Sequence[str], kinds: tuple[type[nn.Module], ...]) -> str:
    pattern = next((pattern for pattern in keep_float if fnmatch.fnmatchcase(name, pattern)), None)
    if pattern is not None:
        return f"kept in float by quantize.keep_float '{pattern}'"
    if type(layer) not in kinds:  # a subclass may compute something else
        return f"{type(layer).__name__} is not converted by this recipe"
    padding = getattr(layer, "padding_mode", "zeros")
    if padding != "zeros" or isinstance(getattr(layer, "padding", 0), str):
        return f"padding '{layer.padding if padding == 'zeros' else padding}' has no int8 kernel"
    return ""


def _refuse_idle_patterns(names: Collection[str], keep_float: Sequence[str]) -> None:
    idle = [pattern for pattern in keep_float if not fnmatch.filter(names, pattern)]
    if idle:
        some = ", ".join(sorted(names)[:3])
        raise ConfigError([f"quantize.keep_float: '{name}' names no layer; layers are {some}, ..." for name in idle])


def check_some_quantized(rows: Sequence[LayerRow], variant: str) -> None:
    """Raises ConfigError when a recipe has quantized nothing: the file would be int8 by name only."""
    if not any(row.int8 for row in rows):
        raise ConfigError([f"quantize: {variant} has quantized none of {len(rows)} layers; see quantize.keep_float"])


def replace(network: nn.Module, name: str, layer: nn.Module) -> None:
    """Puts `layer` everywhere in `network` where the module called `name` is (shared modules have several places)."""
    old = network.get_submodule(name)
    places = [(owner, key) for owner in network.modules() for key, child in owner._modules.items() if child is old]
    for owner, key in places:
        setattr(owner, key, layer)


def counts(rows: Sequence[LayerRow]) -> dict[str, int]:
    """Layers per kind, quantized and all, e.g. {"int8_Conv2d": 38, "all_Conv2d": 38, ...}."""
    found: dict[str, int] = {}
    for row in rows:
        found[f"all_{row.kind}"] = found.get(f"all_{row.kind}", 0) + 1
        found[f"int8_{row.kind}"] = found.get(f"int8_{row.kind}", 0) + row.int8
    return found


def write_layers_csv(path: Path, rows_of: dict[str, list[LayerRow]]) -> None:
    """All variants in one table, errors with four digits."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["variant", *(field.name for field in fields(LayerRow))])
    for variant, rows in rows_of.items():
        for row in rows:
            values = asdict(row) | {"int8": "yes" if row.int8 else "no"}
            values["error"] = "" if row.error is None else f"{row.error:.4g}"
            writer.writerow([variant, *values.values()])
    write_text_atomic(path, text.getvalue())
