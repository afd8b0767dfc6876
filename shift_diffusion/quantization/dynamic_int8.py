"""Recipe dynamic_int8: torch's own `quantize_dynamic(model, {Linear, Conv2d})`, to be compared with.

It converts linear layers only and passes over every Conv2d without a word; here the report says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from shift_diffusion.quantization.converted import Converted, check_state, contiguous, float_state
from shift_diffusion.quantization.layers import LayerRow, check_some_quantized, plan, replace

NAME = "dynamic_int8"
SKIPPED = "skipped by quantize_dynamic, which has no dynamic {kind}"


@contextmanager
def _without_deprecations() -> Iterator[None]:
    """The recipe is old and warns of it at every call; it is here as what people still use."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=".*deprecated.*")
        yield


def convert(network: nn.Module, keep_float: Sequence[str]) -> Converted:
    """Activation scales are found anew at every call: no calibration. `network` stays as it is.

    Raises:
        ConfigError: nothing was quantized, or a pattern of keep_float names no layer.
    """
    rows = plan(network, keep_float, (nn.Conv2d, nn.Linear))
    wanted = {row.layer: torch.ao.quantization.default_dynamic_qconfig for row in rows if row.int8}
    with _without_deprecations():
        converted = torch.ao.quantization.quantize_dynamic(network, wanted, dtype=torch.qint8)
    for row in rows:
        _note_if_skipped(row, converted.get_submodule(row.layer))
    check_some_quantized(rows, NAME)
    names = [row.layer for row in rows if row.int8]
    state = float_state(network, without=names)
    for name in names:
        weight = converted.get_submodule(name).weight()
        state[f"{name}.weight"] = weight.int_repr()
        state[f"{name}.weight_scale"] = torch.tensor(weight.q_scale(), dtype=torch.float64)
    return Converted(converted, contiguous(state), rows, {})


def _note_if_skipped(row: LayerRow, layer: nn.Module) -> None:
    if row.int8 and type(layer).__module__.partition(".nn.")[0] != "torch.ao":
        row.int8, row.reason = False, SKIPPED.format(kind=row.kind)


def restore(
    network: nn.Module, names: Sequence[str], details: Mapping, state: Mapping[str, Tensor], where: str
) -> nn.Module:
    """As `static_int8.restore`."""
    wanted = float_state(network, without=names)
    for name in names:
        wanted[f"{name}.weight"] = network.get_submodule(name).weight.detach().to(torch.int8)
        wanted[f"{name}.weight_scale"] = torch.zeros((), dtype=torch.float64)
    check_state(state, wanted, where)
    network.load_state_dict({name: value for name, value in state.items() if name in wanted}, strict=False)
    with _without_deprecations():
        for name in names:
            replace(network, name, _dynamic_linear(network.get_submodule(name), name, state))
    return network


def _dynamic_linear(layer: nn.Linear, name: str, state: Mapping[str, Tensor]) -> nn.Module:
    quantized = torch.ao.nn.quantized.dynamic.Linear(layer.in_features, layer.out_features, layer.bias is not None)
    scale = float(state[f"{name}.weight_scale"])
    weight = torch._make_per_tensor_quantized_tensor(state[f"{name}.weight"], scale, 0)
    quantized.set_weight_bias(weight, state.get(f"{name}.bias"))
    return quantized
