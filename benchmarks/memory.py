"""Peak memory of one training step: precision, gradient checkpointing and accumulation, each in a process of its own.

    python -m benchmarks.memory                (stage 3 of params.yaml; no data needed)

Prints the peak of what a step adds to weights, EMA and optimizer state: activations, gradients and temporaries. On an
accelerator it is torch's own count; on the CPU the bytes of all tensors alive, counted at every operator, because
resident memory also counts the libraries' code and workspaces, which differ by processor.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
import weakref
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from shift_diffusion.config import Params, load_params, parse_params
from shift_diffusion.models.conditioning import TextCondition
from shift_diffusion.process.schedules import schedule_of
from shift_diffusion.runtime import set_up
from shift_diffusion.training.batches import Batch, to_batch
from shift_diffusion.training.parallel import Parallel
from shift_diffusion.training.start import make_engine, start_network

VARIANTS: dict[str, dict[str, Any]] = {
    "float32": {"precision": "float32"},
    "float32, checkpointing": {"precision": "float32", "gradient_checkpointing": True},
    "float32, half batch twice": {"precision": "float32", "accumulation": 2},
    "bfloat16": {"precision": "bfloat16"},
    "bfloat16, checkpointing": {"precision": "bfloat16", "gradient_checkpointing": True},
}
TOKENS, TEXT_DIM = 20, 384


class LiveBytes(TorchDispatchMode):
    """Counts the storages that operators make inside the block, until they are freed."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: weakref.WeakSet = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and id(tensor.untyped_storage()) not in given:
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage not in self._known:
            self._known.add(storage)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._freed, storage.nbytes())

    def _freed(self, size: int) -> None:
        self.now -= size


class _NoData:
    text_dim = TEXT_DIM


def params_of(variant: dict[str, Any], base: Params) -> Params:
    content = base.model_dump(mode="json", by_alias=True)
    content["runtime"] |= {k: v for k, v in variant.items() if k != "accumulation"}
    return parse_params(content)


def random_batch(params: Params, stage: int, size: int) -> Batch:
    resolution = params.train.stages[stage - 1].resolution
    images = torch.randint(0, 256, (size, 3, resolution, resolution), dtype=torch.uint8)
    images = images.contiguous(memory_format=torch.channels_last)
    text, drop = None, None
    if params.conditioning.style != "none":
        mask = torch.ones(size, TOKENS, dtype=torch.bool)
        text = TextCondition(torch.randn(size, TOKENS, TEXT_DIM), mask, torch.randn(size, TEXT_DIM))
        drop = torch.zeros(size, dtype=torch.bool)
    u, schedule = torch.rand(size, dtype=torch.float64), schedule_of(params.process, params.train.stages[stage - 1])
    eps = torch.randn(images.shape).contiguous(memory_format=torch.channels_last)
    return to_batch(images, eps, u, schedule, params.process.time_sampling, np.arange(size), text, drop)


def measure(stage: int, batch_size: int, variant: dict[str, Any]) -> dict[str, float]:
    """In this process: peak of the second step in MB above what was there before it, and its seconds."""
    params = params_of(variant, load_params())
    environment = set_up(params.runtime)
    parallel = Parallel(environment.device.type)
    engine = make_engine(params, stage, start_network(stage, params, _NoData(), None), environment, parallel)
    cut = variant.get("accumulation", 1)
    batches = [random_batch(params, stage, batch_size // cut) for _ in range(cut)]
    engine.train_step(batches, batch_size, 1e-4)
    start = time.perf_counter()
    if parallel.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        engine.train_step(batches, batch_size, 1e-4)
        peak = torch.cuda.max_memory_allocated() - before
    else:
        with LiveBytes() as live:
            engine.train_step(batches, batch_size, 1e-4)
        peak = live.peak
    return {"mb": peak / 2**20, "seconds": time.perf_counter() - start}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--variant", help="measure this one here and print JSON")
    arguments = parser.parse_args()
    if arguments.variant:
        variant = VARIANTS[arguments.variant]
        print(json.dumps(measure(arguments.stage, arguments.batch_size, variant)))
        return
    plain = None
    print(f"stage {arguments.stage}, batch {arguments.batch_size}")
    for name in VARIANTS:
        command = [sys.executable, "-m", "benchmarks.memory", *sys.argv[1:], "--variant", name]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        plain = plain or found["mb"]
        change = 100 * (found["mb"] / plain - 1)
        print(f"{name:28} {found['mb']:8.0f} MB  {change:+5.0f} %   {found['seconds']:.2f} s a step", flush=True)


if __name__ == "__main__":
    main()
