"""What changes in training, and the one step that changes it: weights, EMA, optimizer, scaler, guard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shift_diffusion.config import Optim
from shift_diffusion.training.batches import Batch
from shift_diffusion.training.checkpoint import CheckpointError
from shift_diffusion.training.ema import Ema
from shift_diffusion.training.guard import Guard, Verdict
from shift_diffusion.training.muon import Muon
from shift_diffusion.training.objective import NUM_QUARTILES, Objective
from shift_diffusion.training.parallel import Parallel, copy_into, full

_MOMENTS = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class StepResult:
    """Of one draw. loss: mean over the group; quartile_losses: (sum, number of images) per quartile of the noise level;
    grad_norm: before clipping, of unscaled gradients; stop: a process was asked to stop."""

    verdict: Verdict
    loss: float
    quartile_losses: list[tuple[float, float]]
    grad_norm: float
    stop: bool


class Engine:
    """Trains the network of an objective.

    Args:
        scaler: loss scaling for float16, else None.
    """

    def __init__(
        self, objective: Objective, optim: Optim, parallel: Parallel, scaler: torch.amp.GradScaler | None = None
    ):
        self.parallel, self.scaler = parallel, scaler
        self._objective = parallel.wrap(objective)
        self.network: nn.Module = objective.network
        self.optimizer = make_optimizer(self.network, optim)
        self.ema = Ema(self.network, optim.ema_decay)
        self.guard = Guard(optim.max_bad_steps, optim.spike_factor)
        self.step = 0
        self._clip = optim.grad_clip
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]

    @property
    def draw(self) -> int:
        """Number of the next group of images: skipped steps have used one up, too."""
        return self.step + self.guard.skipped_steps

    def train_step(self, batches: Sequence[Batch], group_size: int, lr: float, stop: bool = False) -> StepResult:
        """Looks at one group; changes weights, EMA and step counter unless the guard objects.

        Args:
            batches: this process's micro-batches. group_size: images of all processes' micro-batches together.
            stop: this process was asked to stop; the result says whether any was.
        """
        statistics = self._backward(batches, group_size, stop)
        if self.scaler is not None:
            self.scaler.unscale_(self.optimizer)  # before clipping: the limit is about true gradients
        norm = full_norm(nn.utils.clip_grad_norm_(self._parameters, self._clip, foreach=True))
        # The only wait for the device in a step: whether to apply it must be known before it is applied.
        numbers = torch.cat([statistics, norm.reshape(1)]).tolist()
        loss, grad_norm = numbers[0] / group_size, numbers[-1]
        verdict = self.guard.judge(self.draw, loss, grad_norm)
        if verdict is Verdict.APPLY:
            self._apply(lr)
        if self.scaler is not None:
            self.scaler.update()  # also after a skipped step: it lowers the scale
        self.optimizer.zero_grad(set_to_none=True)
        sums, counts = numbers[1 : 1 + NUM_QUARTILES], numbers[1 + NUM_QUARTILES : 1 + 2 * NUM_QUARTILES]
        return StepResult(verdict, loss, list(zip(sums, counts, strict=True)), grad_norm, bool(numbers[-2]))

    def _backward(self, batches: Sequence[Batch], group_size: int, stop: bool) -> Tensor:
        """Gradients of the group's mean loss; its statistics and the number of stop requests, over all processes."""
        device, share = self.parallel.device, self.parallel.world / group_size
        total = torch.zeros(2 + 2 * NUM_QUARTILES, device=device)
        total[-1] = float(stop)
        for number, batch in enumerate(batches, start=1):
            with self.parallel.no_sync(self._objective, last=number == len(batches)):
                loss, statistics = self._objective(batch.to(device), share)
                (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            total[:-1] += statistics
        return self.parallel.sum(total)

    def _apply(self, lr: float) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
        self.ema.update()
        self.step += 1

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """The network is the averaged one, in evaluation mode and without gradients, inside the block."""
        self._objective.eval()
        with self.ema.applied(), torch.no_grad(), self.parallel.whole(self._objective):
            yield
        self._objective.train()

    def statistics(self, batch: Batch) -> Tensor:
        """Of one batch, see `Objective.forward`; for validation."""
        return self._objective(batch.to(self.parallel.device), 1.0)[1]

    def tensors(self) -> dict[str, Tensor]:
        """All tensors of the run's state, whole and on the CPU, by plain names. Every process must take part."""
        result = {f"network.{name}": full(tensor) for name, tensor in self.network.state_dict().items()}
        result |= {f"ema.{name}": full(tensor) for name, tensor in self.ema.averages.items()}
        for name, parameter in self.network.named_parameters():
            moments = self.optimizer.state.get(parameter, {})
            keys = [key for key in self._moments(parameter) if key in moments]
            result |= {f"optimizer.{name}.{key}": full(moments[key]) for key in keys}
        return result

    def state(self) -> dict[str, Any]:
        """The rest of the run's state, JSON-able."""
        scaler = None if self.scaler is None else self.scaler.state_dict()
        return {"step": self.step, "ema_updates": self.ema.num_updates, "guard": self.guard.state(), "scaler": scaler}

    def load(self, tensors: dict[str, Tensor] | None, state: dict[str, Any]) -> None:
        """Takes over a state on all processes. `tensors` is the main process's, None on the others.

        Raises:
            CheckpointError: a tensor is missing, unexpected or of another shape; each is listed.
        """
        self.step, self.ema.num_updates = state["step"], state["ema_updates"]
        self.guard.load(state["guard"])
        if self.scaler is not None:
            self.scaler.load_state_dict(state["scaler"])
        targets = self._targets(with_moments=self.step > 0)
        if tensors is not None:
            _check(tensors, targets)
        for name, target in targets.items():
            copy_into(target, None if tensors is None else tensors[name], self.parallel)

    def _moments(self, parameter: Tensor) -> tuple[str, ...]:
        return self.optimizer.moment_names(parameter) if isinstance(self.optimizer, Muon) else _MOMENTS

    def _targets(self, with_moments: bool) -> dict[str, Tensor]:
        """The live tensors of the state, by the names of `tensors`."""
        targets = {f"network.{name}": tensor for name, tensor in self.network.state_dict().items()}
        targets |= {f"ema.{name}": tensor for name, tensor in self.ema.averages.items()}
        self.optimizer.state.clear()
        for name, parameter in self.network.named_parameters() if with_moments else ():
            moments = {key: torch.zeros_like(parameter) for key in self._moments(parameter)}
            steps = torch.tensor(float(self.step), device=parameter.device)
            self.optimizer.state[parameter] = {"step": steps, **moments}
            targets |= {f"optimizer.{name}.{key}": moment for key, moment in moments.items()}
        return targets


def make_optimizer(network: nn.Module, optim: Optim) -> torch.optim.AdamW:
    """Muon or AdamW; weight decay for matrices and kernels only, not for gains, biases and single vectors."""
    parameters = [p for p in network.parameters() if p.requires_grad]
    fused = all(p.device.type in ("cpu", "cuda") for p in parameters)
    if optim.name == "muon":
        return Muon(network, optim.betas, optim.weight_decay, fused)
    groups = [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": optim.weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], betas=optim.betas, lr=0.0, fused=fused)


def full_norm(norm: Tensor) -> Tensor:
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def _check(tensors: dict[str, Tensor], targets: dict[str, Tensor]) -> None:
    problems = [f"missing: {name}" for name in sorted(targets.keys() - tensors.keys())]
    problems += [f"unexpected: {name}" for name in sorted(tensors.keys() - targets.keys())]
    problems += [
        f"{name} is {tuple(tensors[name].shape)}, the run needs {tuple(targets[name].shape)}"
        for name in sorted(targets.keys() & tensors.keys())
        if tensors[name].shape != targets[name].shape
    ]
    if problems:
        raise CheckpointError("the checkpoint doesn't fit this run:\n" + "\n".join(problems))
