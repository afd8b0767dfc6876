"""One process or many: all that the training engine needs to know about it, on top of accelerate.

With one process nothing is wrapped and every exchange is free. With many, `accelerate` sets up the process group from
the environment of `accelerate launch` or torchrun; gradients meet in DDP or in FSDP (torch's fully_shard, weights,
gradients, optimizer state and EMA divided between the processes).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from shift_diffusion.config import ConfigError


class Parallel:
    """The processes of one run: device of this one, its rank, and their exchanges."""

    def __init__(self, device_type: str, sharding: str = "ddp"):
        # Mixed precision stays with us: accelerate's would clip scaled gradients under fp16 on some paths.
        self._accelerator = Accelerator(cpu=device_type == "cpu", mixed_precision="no")
        self.device: torch.device = self._accelerator.device
        self.world: int = self._accelerator.num_processes
        self.rank: int = self._accelerator.process_index
        self._sharded = sharding == "fsdp" and self.world > 1

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wrap(self, module: nn.Module) -> nn.Module:
        """`module` on its device, its gradients averaged over the processes. Parameters keep their objects and names
        (FSDP replaces the objects: take them from the module after this call)."""
        module = sync_batch_norm(module, self.world, self.device)
        module.to(self.device)
        if self.world == 1:
            return module
        if self._sharded:
            for parameter in module.parameters():
                parameter.data = parameter.data.contiguous()  # fully_shard takes no other layout
                dist.broadcast(parameter.data, src=0)
            fully_shard(module, reshard_after_forward=False)
            return module
        return self._accelerator.prepare_model(module)

    def no_sync(self, module: nn.Module, *, last: bool) -> AbstractContextManager:
        """Gradients stay local inside the block, unless it is the last micro-batch of its group."""
        if self.world == 1:
            return nullcontext()
        if self._sharded:
            return _sharded_sync(module, last)
        return nullcontext() if last else self._accelerator.no_sync(module)

    @contextmanager
    def whole(self, module: nn.Module) -> Iterator[None]:
        """Inside the block the parts of `module` can be called by themselves: under FSDP its weights are gathered."""
        if self._sharded:
            module.unshard()
        try:
            yield
        finally:
            if self._sharded:
                module.reshard()

    def sum(self, values: Tensor) -> Tensor:
        """Element-wise sum over the processes, in place."""
        if self.world > 1:
            dist.all_reduce(values)
        return values

    def share(self, content: dict[str, Any] | None) -> dict[str, Any] | None:
        """The main process's JSON-able value, on every process."""
        if self.world == 1:
            return content
        data = torch.frombuffer(bytearray(json.dumps(content).encode()), dtype=torch.uint8).to(self.device)
        size = torch.tensor([len(data)], device=self.device)
        dist.broadcast(size, src=0)
        data = data if self.is_main else torch.empty(int(size), dtype=torch.uint8, device=self.device)
        dist.broadcast(data, src=0)
        return json.loads(bytes(data.cpu().numpy()).decode())

    def wait(self) -> None:
        self._accelerator.wait_for_everyone()


@contextmanager
def _sharded_sync(module: FSDPModule, sync: bool):
    module.set_requires_gradient_sync(sync)
    yield


def sync_batch_norm(module: nn.Module, world: int, device: torch.device) -> nn.Module:
    """BatchNorm layers of a user's own network normalize over the batch of all processes.

    Raises:
        ConfigError: several processes on a device for which torch has no synchronized BatchNorm.
    """
    if world == 1 or not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in module.modules()):
        return module
    if device.type == "cpu":
        raise ConfigError(["runtime.num_processes: BatchNorm can't be synchronized between CPU processes; use 1"])
    return nn.SyncBatchNorm.convert_sync_batchnorm(module)


def full(tensor: Tensor) -> Tensor:
    """All of a tensor on the CPU; for a sharded one every process must take part."""
    tensor = tensor.detach()
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).cpu()


@torch.no_grad()
def copy_into(target: Tensor, value: Tensor | None, parallel: Parallel) -> None:
    """Writes the main process's `value` into `target` on every process, whole or its shard."""
    if isinstance(target, DTensor):
        whole = torch.empty(target.shape, dtype=target.dtype, device=target.device) if value is None else value
        target.copy_(distribute_tensor(whole.to(target.device), target.device_mesh, target.placements))
        return
    if value is not None:
        target.copy_(value)
    if parallel.world > 1:
        dist.broadcast(target, src=0)
