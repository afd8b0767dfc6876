"""Where a training step's time goes: operators by kind, optimizer, data.

    python -m benchmarks.step_profile --stage 3          (needs data/prepared)

Shares are of the processor time of the operators in forward, backward and optimizer; data is the time the batch thread
needs for one group (it runs beside the step), and the wait is what the step loses to it.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict

import torch
from torch.profiler import ProfilerActivity, profile

from shift_diffusion.config import load_params
from shift_diffusion.data.store import PreparedData
from shift_diffusion.process.schedules import schedule_of
from shift_diffusion.runtime import set_up
from shift_diffusion.training.batches import Ahead, TrainingBatches
from shift_diffusion.training.parallel import Parallel
from shift_diffusion.training.start import make_engine, start_network

# first match counts
KINDS = {
    "convolutions": ("conv", "mkldnn", "onednn"),
    "normalization": ("norm",),
    "activations": ("silu", "relu", "sigmoid", "tanh", "gelu"),
    "attention": ("attention", "softmax"),
    "matrix products": ("mm", "linear", "matmul", "dot"),
    "optimizer and EMA": ("_foreach", "adam", "lerp"),
    "copies and layout": ("copy", "contiguous", "clone", "cat", "to_copy", "fill", "zero", "pad", "stack"),
    "sums and products": ("add", "mul", "sub", "div", "sum", "mean", "pow", "sqrt"),
}


def kind_of(operator: str) -> str:
    name = operator.removeprefix("aten::")
    return next((kind for kind, parts in KINDS.items() if any(part in name for part in parts)), "the rest")


def shares(run, steps: int) -> dict[str, float]:
    """Kind -> share of the operators' own time over `steps` calls of `run`."""
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
    with profile(activities=activities) as trace:
        for _ in range(steps):
            run()
    totals: dict[str, float] = defaultdict(float)
    for event in trace.key_averages():
        own = event.self_device_time_total if torch.cuda.is_available() else event.self_cpu_time_total
        totals[kind_of(event.key)] += own
    whole = sum(totals.values())
    return {kind: value / whole for kind, value in sorted(totals.items(), key=lambda item: -item[1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stage", type=int, choices=(1, 2, 3), default=3)
    parser.add_argument("--steps", type=int, default=10)
    arguments = parser.parse_args()
    params, data = load_params(), PreparedData.open("data/prepared")
    environment, section = set_up(params.runtime), params.train.stages[arguments.stage - 1]
    parallel = Parallel(environment.device.type)
    network = start_network(arguments.stage, params, data, None)
    engine = make_engine(params, arguments.stage, network, environment, parallel)
    batches = TrainingBatches(params, arguments.stage, data, schedule_of(params.process, section), 1, 0)
    ahead, size, waited = Ahead(batches.make), batches.group_size, []

    def step() -> None:
        start = time.perf_counter()
        made = ahead.take((engine.draw, size), (engine.draw + 1, size))
        waited.append(time.perf_counter() - start)
        engine.train_step(made, size, 1e-4)

    for _ in range(3):
        step()
    waited.clear()
    start = time.perf_counter()
    for _ in range(arguments.steps):
        step()
    seconds = (time.perf_counter() - start) / arguments.steps
    wait = sum(waited) / arguments.steps
    start = time.perf_counter()
    for draw in range(arguments.steps):
        batches.make(draw, size)
    making = (time.perf_counter() - start) / arguments.steps
    print(f"stage {arguments.stage}: {1000 * seconds:.0f} ms a step, {size / seconds:.1f} images/s")
    print(
        f"making a batch: {1000 * making:.1f} ms; waiting for it: {1000 * wait:.2f} ms ({100 * wait / seconds:.2f} %)"
    )
    for kind, share in shares(step, arguments.steps).items():
        print(f"{kind:20} {100 * share:5.1f} %")
    ahead.close()


if __name__ == "__main__":
    main()
