"""Muon for the hidden matrices and AdamW for the rest: about half the steps of AdamW alone for the same pictures.

Muon (Jordan et al. 2024) replaces the momentum of a matrix by the nearest (semi-)orthogonal matrix, so that all its
directions are learned at one speed. The update is scaled as in Liu et al. 2025 ("Muon is scalable for LLM training",
eq. 4) to the size of an AdamW update, which lets both share one learning rate.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

import torch
from torch import Tensor, nn

# Quintic of Jordan et al. 2024: fastest growth of small singular values; all end within 0.7 and 1.2.
_QUINTIC = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5
_UPDATE_SIZE = 0.2  # root mean square of a typical AdamW update
_EDGES = ("stem", "head")  # first and last layers: their rows are colors, not directions of a hidden space


def orthogonalize(matrices: Tensor) -> Tensor:
    """Nearest orthogonal matrices, approximately: (N, rows, columns) float32, by Newton-Schulz iteration.

    Each iteration multiplies x from the left by a polynomial of its Gram matrix. All these commute, so they are
    collected in the small square matrices alone, and x, nine times as wide for a kernel, is multiplied twice in all.
    """
    a, b, c = _QUINTIC
    tall = matrices.shape[1] > matrices.shape[2]
    x = matrices.mT if tall else matrices  # the smaller side in front: its Gram matrix is the small one
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    gram, collected = x @ x.mT, None
    for iteration in range(_ITERATIONS):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=1, dim2=2).add_(a)
        collected = factor if collected is None else factor @ collected
        if iteration + 1 < _ITERATIONS:
            gram = factor @ gram @ factor
    x = collected @ x
    return x.mT if tall else x


def is_hidden_matrix(name: str, parameter: Tensor) -> bool:
    """Whether Muon updates it: kernels and matrices between hidden layers."""
    return parameter.ndim >= 2 and name.endswith("weight") and not any(part in _EDGES for part in name.split("."))


class Muon(torch.optim.AdamW):
    """AdamW in which the parameters of groups with `muon: True` get orthogonalized momentum instead.

    Args:
        network: its parameters that need gradients are all taken.
        betas: of AdamW; the momentum of Muon is fixed at 0.95.
        weight_decay: of matrices and kernels; not of gains, biases and single vectors.
    """

    momentum = 0.95

    def __init__(self, network: nn.Module, betas: tuple[float, float], weight_decay: float, fused: bool):
        named = [(name, p) for name, p in network.named_parameters() if p.requires_grad]
        hidden = [p for name, p in named if is_hidden_matrix(name, p)]
        other = [p for name, p in named if not is_hidden_matrix(name, p)]
        groups = [
            {"params": hidden, "weight_decay": weight_decay, "muon": True},
            {"params": [p for p in other if p.ndim >= 2], "weight_decay": weight_decay, "muon": False},
            {"params": [p for p in other if p.ndim < 2], "weight_decay": 0.0, "muon": False},
        ]
        super().__init__([g for g in groups if g["params"]], betas=betas, lr=0.0, fused=fused)

    def moment_names(self, parameter: Tensor) -> tuple[str, ...]:
        """Which moments the state of a parameter holds: what a checkpoint must keep."""
        hidden = any(parameter is p for group in self.param_groups if group["muon"] for p in group["params"])
        return ("exp_avg",) if hidden else ("exp_avg", "exp_avg_sq")

    @torch.no_grad()
    def step(self, closure=None):
        muon_groups = [group for group in self.param_groups if group["muon"]]
        for group in muon_groups:
            self._step_matrices(group)
        rest = [group for group in self.param_groups if not group["muon"]]
        self.param_groups = rest
        try:
            super().step(closure)
        finally:
            self.param_groups = [*muon_groups, *rest]

    def _step_matrices(self, group: dict) -> None:
        parameters = [p for p in group["params"] if p.grad is not None]
        if not parameters:
            return
        for p in parameters:
            if not self.state[p]:
                self.state[p] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p)}
        averages = [self.state[p]["exp_avg"] for p in parameters]
        torch._foreach_lerp_(averages, [p.grad for p in parameters], 1 - self.momentum)
        if group["weight_decay"]:
            torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        for same in by_shape(parameters):
            self._step_same_shape(same, group["lr"])

    def _step_same_shape(self, parameters: list[Tensor], lr: float) -> None:
        """One batched product for all matrices of a shape: small products alone would leave cores idle."""
        looking_ahead = [torch.lerp(p.grad, self.state[p]["exp_avg"], self.momentum) for p in parameters]  # Nesterov
        updates = orthogonalize(torch.stack([u.flatten(1) for u in looking_ahead]))
        scale = _UPDATE_SIZE * math.sqrt(max(updates.shape[1:]))
        for p, update in zip(parameters, updates, strict=True):
            self.state[p]["step"] += 1
            p.add_(update.view(p.shape), alpha=-lr * scale)


def by_shape(parameters: Iterable[Tensor]) -> list[list[Tensor]]:
    """What is orthogonalized together."""
    groups = defaultdict(list)
    for p in parameters:
        groups[tuple(p.shape)].append(p)
    return list(groups.values())
