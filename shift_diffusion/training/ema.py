"""Exponential moving average of the weights: what is evaluated, sampled and grown."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


def local(tensor: Tensor) -> Tensor:
    """The part of a sharded tensor that this process holds; a plain tensor as it is."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


class Ema:
    """Average of a network's parameters; its buffers are the network's own.

    The decay warms up as (1 + n) / (10 + n) over the updates n, so that the random (or just grown) start fades at
    once, and ends at `decay`. Half-life in optimizer steps: 0.99 = 69, 0.995 = 138, 0.999 = 693, 0.9999 = 6931.
    """

    def __init__(self, network: nn.Module, decay: float):
        self.decay = decay
        self.num_updates = 0
        live = {name: parameter.detach() for name, parameter in network.named_parameters()}
        self.averages = {
            name: tensor.clone() for name, tensor in live.items()
        }  # by plain name, sharded like the network
        self._live = [local(tensor) for tensor in live.values()]
        self._local = [local(tensor) for tensor in self.averages.values()]

    @property
    def current_decay(self) -> float:
        """Weight of the old average in the next update."""
        return min(self.decay, (1 + self.num_updates) / (10 + self.num_updates))

    @torch.no_grad()
    def update(self) -> None:
        torch._foreach_lerp_(self._local, self._live, 1 - self.current_decay)
        self.num_updates += 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The network holds the averaged weights inside the block, and its own ones again after it."""
        kept = [tensor.clone() for tensor in self._live]
        with torch.no_grad():
            torch._foreach_copy_(self._live, self._local)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._live, kept)
