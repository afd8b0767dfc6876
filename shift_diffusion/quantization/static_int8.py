"""Recipe static_int8: weights and activations in int8, activation scales from calibration."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from shift_diffusion.config import ConfigError
from shift_diffusion.quantization.calibration import Inputs, hooked, input_ranges
from shift_diffusion.quantization.capability import has_int8_kernels, safe_activation_bits
from shift_diffusion.quantization.converted import Converted, check_state, contiguous
from shift_diffusion.quantization.int8_layers import StaticInt8, static_layer
from shift_diffusion.quantization.layers import LayerRow, check_some_quantized, plan, replace

NAME = "static_int8"
KINDS = (nn.Conv2d, nn.Linear)


def convert(
    network: nn.Module, batches: Sequence[Inputs], keep_float: Sequence[str], activation_bits: int
) -> Converted:
    """`network` stays as it is.

    Args:
        batches: real inputs at all noise levels; the first one also measures the error of every single layer.
        activation_bits: 7 or 8, see `capability.safe_activation_bits`.

    Raises:
        ConfigError: nothing was quantized, or a pattern of keep_float names no layer.
    """
    rows = plan(network, keep_float, KINDS)
    layers = {row.layer: network.get_submodule(row.layer) for row in rows if row.int8}
    ranges = input_ranges(network, layers, batches, activation_bits)
    converted = copy.deepcopy(network)
    for row in rows:
        if row.int8 and row.layer not in ranges:
            row.int8, row.reason = False, "never called in calibration, so its inputs are unknown"
        elif row.int8:
            quantized = static_layer(layers[row.layer], activation_bits)
            quantized.set_input_range(*ranges[row.layer])
            replace(converted, row.layer, quantized)
    check_some_quantized(rows, NAME)
    _prepare(converted, activation_bits)
    _measure_layer_errors(converted, network, rows, batches[0])
    return Converted(converted, contiguous(converted.state_dict()), rows, {"activation_bits": activation_bits})


def restore(
    network: nn.Module, names: Sequence[str], details: Mapping, state: Mapping[str, Tensor], where: str
) -> nn.Module:
    """The converted network from its state; `network` (fresh weights) is used up.

    Raises:
        ConfigError: the state isn't exactly the network's.
    """
    bits = details.get("activation_bits")
    if bits not in (7, 8):
        raise ConfigError([f"{where}: activation_bits is {bits!r}; 7 and 8 are known"])
    for name in names:
        replace(network, name, static_layer(network.get_submodule(name), bits))
    check_state(state, network.state_dict(), where)
    network.load_state_dict(state)
    _prepare(network, bits)
    return network


def _prepare(network: nn.Module, activation_bits: int) -> None:
    """int8 kernels only where their sums can't overflow with this many bits; else the same numbers in float."""
    kernels = has_int8_kernels() and activation_bits <= safe_activation_bits()
    for layer in network.modules():
        if isinstance(layer, StaticInt8):
            layer.prepare(kernels)


@torch.no_grad()
def _measure_layer_errors(converted: nn.Module, network: nn.Module, rows: list[LayerRow], batch: Inputs) -> None:
    """Each quantized layer alone, on the inputs it has in the float network: says which one to keep in float."""
    row_of = {row.layer: row for row in rows if row.int8}
    layers = {name: network.get_submodule(name) for name in row_of}
    busy = False

    def compare(name: str, x: Tensor) -> None:
        nonlocal busy
        if busy or row_of[name].error is not None:
            return
        busy = True  # the float layer is called from within its own hook
        exact = layers[name](x)
        busy = False
        row_of[name].error = relative_error(converted.get_submodule(name)(x), exact)

    with hooked(layers, compare):
        network(*batch)


def relative_error(estimate: Tensor, exact: Tensor) -> float:
    """|estimate - exact| / |exact| over all values; the plain distance when `exact` is zero."""
    distance, size = (estimate - exact).double().norm(), exact.double().norm()
    return float(distance / size) if size else float(distance)
