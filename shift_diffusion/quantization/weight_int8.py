"""Recipe weight_int8: weights stored in int8 per output channel, computed in float: a quarter of the file."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from shift_diffusion.quantization.converted import Converted, check_state, contiguous, float_state
from shift_diffusion.quantization.int8_layers import dequantize_weight, quantize_weight
from shift_diffusion.quantization.layers import check_some_quantized, plan

NAME = "weight_int8"


def convert(network: nn.Module, keep_float: Sequence[str]) -> Converted:
    """`network` stays as it is. Works on any device, at float32's speed.

    Raises:
        ConfigError: nothing was quantized, or a pattern of keep_float names no layer.
    """
    rows = plan(network, keep_float, (nn.Conv2d, nn.Linear))
    check_some_quantized(rows, NAME)
    names = [row.layer for row in rows if row.int8]
    state = float_state(network, without=names)
    for name in names:
        weight, scale = quantize_weight(network.get_submodule(name).weight)
        state[f"{name}.weight"], state[f"{name}.weight_scale"] = weight, scale
    converted = copy.deepcopy(network)
    _fill(converted, names, state)
    return Converted(converted, contiguous(state), rows, {})


def restore(
    network: nn.Module, names: Sequence[str], details: Mapping, state: Mapping[str, Tensor], where: str
) -> nn.Module:
    """As `static_int8.restore`; the result is an ordinary float network."""
    wanted = float_state(network, without=names)
    for name in names:
        weight = network.get_submodule(name).weight.detach()
        wanted[f"{name}.weight"], wanted[f"{name}.weight_scale"] = weight.to(torch.int8), weight.new_zeros(len(weight))
    check_state(state, wanted, where)
    _fill(network, names, state)
    return network


def _fill(network: nn.Module, names: Sequence[str], state: Mapping[str, Tensor]) -> None:
    values = {name: value for name, value in state.items() if not name.endswith(".weight_scale")}
    for name in names:
        values[f"{name}.weight"] = dequantize_weight(state[f"{name}.weight"], state[f"{name}.weight_scale"])
    network.load_state_dict(values)
