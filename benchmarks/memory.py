"""Peak memory of one training step: precision, gradient checkpointing and accumulation, each in a process of its own.

    python -m benchmarks.memory                (stage 3 of params.yaml; no data needed)

Prints megabytes above what the process held before its first step (weights, libraries): activations, gradients,
optimizer state and EMA. On an accelerator it is what torch allocated, on the CPU what the process held resident.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

import numpy as np
import psutil
import torch

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


def measure(stage: int, batch_size: int, steps: int, variant: dict[str, Any]) -> dict[str, float]:
    """In this process: peak above the start in MB, and seconds of the last step."""
    params = params_of(variant, load_params())
    environment = set_up(params.runtime)
    parallel = Parallel(environment.device.type)
    engine = make_engine(params, stage, start_network(stage, params, _NoData(), None), environment, parallel)
    cut = variant.get("accumulation", 1)
    batches = [random_batch(params, stage, batch_size // cut) for _ in range(cut)]
    before, cuda = psutil.Process().memory_info().rss, parallel.device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
    for _ in range(steps):
        start = time.perf_counter()
        engine.train_step(batches, batch_size, 1e-4)
        seconds = time.perf_counter() - start
    unit = 1 if sys.platform == "darwin" else 1024
    peak = torch.cuda.max_memory_allocated() if cuda else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return {"mb": (peak - before) / 2**20, "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stage", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--variant", help="measure this one here and print JSON")
    arguments = parser.parse_args()
    if arguments.variant:
        variant = VARIANTS[arguments.variant]
        print(json.dumps(measure(arguments.stage, arguments.batch_size, arguments.steps, variant)))
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
