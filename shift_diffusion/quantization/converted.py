"""What every recipe gives: a network to call, the state to save, and an account of all layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from shift_diffusion.config import ConfigError
from shift_diffusion.quantization.layers import LayerRow


@dataclass(frozen=True)
class Converted:
    """network: called like the float one. state: everything its file holds, each weight once. rows: all layers.

    details: JSON-able, what rebuilding the network needs besides the state and the names of the int8 layers.
    """

    network: nn.Module
    state: dict[str, Tensor]
    rows: list[LayerRow]
    details: dict

    @property
    def int8_layers(self) -> list[str]:
        return [row.layer for row in self.rows if row.int8]


def float_state(network: nn.Module, without: Sequence[str]) -> dict[str, Tensor]:
    """State of a float network on the CPU, less the weights of the layers named in `without`."""
    dropped = {f"{name}.weight" for name in without}
    return {name: value.detach().cpu() for name, value in network.state_dict().items() if name not in dropped}


def contiguous(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.contiguous() for name, value in sorted(state.items())}


def check_state(state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str) -> None:
    """Raises ConfigError naming every tensor that is missing, unexpected, or of another shape or dtype."""
    problems = [f"'{name}' is missing" for name in sorted(wanted.keys() - state.keys())]
    problems += [f"'{name}' is unexpected" for name in sorted(state.keys() - wanted.keys())]
    for name in sorted(wanted.keys() & state.keys()):
        found, right = ((tuple(t.shape), str(t.dtype)) for t in (state[name], wanted[name]))
        if found != right:
            problems.append(f"'{name}' is {found[1]} {found[0]}, the network needs {right[1]} {right[0]}")
    if problems:
        raise ConfigError([f"{where}: {problem}" for problem in problems])
