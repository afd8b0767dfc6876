"""Measures one variant in a process of its own, so that its peak memory is its own: `python -m ... < task > result`.

Reads a task as JSON on stdin, writes the result as JSON to the file it names. What is measured is one call of the
network, the step that sampling repeats.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from shift_diffusion.config import Runtime
from shift_diffusion.files import write_bytes_atomic, write_json
from shift_diffusion.models.conditioning import TextCondition
from shift_diffusion.models.saving import load_network
from shift_diffusion.quantization.capability import has_cpp_compiler
from shift_diffusion.quantization.compiled import NO_COMPILER, CompiledNetwork
from shift_diffusion.quantization.saving import RECIPES, load_quantized
from shift_diffusion.runtime import has_fast_bfloat16, peak_memory_mb, set_up

COMPILED = ("compiled", "static_int8")  # the variants that are what they are only once compiled
UNCOMPILED = "static_int8_uncompiled"  # oneDNN's int8 kernels called one by one: what `load_quantized` gives
TOO_SLOW_S = 10.0  # one call: beyond it a batch size is left out
BUDGET_S = 2.5  # per batch size, after which no further repeat starts
MIN_REPEATS = 3
LOG_SNR = 0.3


def timed(call: Callable[[], Any], synchronize: Callable[[], None], repeats: int, budget_s: float) -> list[float]:
    """Seconds of each call, the device idle before and after it; the first call is left out.

    Stops after `repeats`, or when `budget_s` is spent and there are at least MIN_REPEATS.
    """
    call()
    synchronize()
    seconds: list[float] = []
    while len(seconds) < repeats and (sum(seconds) < budget_s or len(seconds) < MIN_REPEATS):
        start = time.perf_counter()
        call()
        synchronize()
        seconds.append(time.perf_counter() - start)
    return seconds


def summarize(seconds: list[float], batch_size: int) -> dict[str, float]:
    """Median and half the distance between the quartiles, in ms; pictures a second at the median."""
    middle = statistics.median(seconds)
    quartiles = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else [middle] * 3
    return {
        "latency_ms": 1e3 * middle,
        "latency_spread_ms": 1e3 * (quartiles[2] - quartiles[0]) / 2,
        "pictures_per_s": batch_size / middle,
        "repeats": len(seconds),
    }


def inputs(
    config: dict[str, Any], batch_size: int, device: torch.device
) -> tuple[Tensor, Tensor, TextCondition | None]:
    """The same numbers at every call, for every variant: a batch at one noise level, with captions of full length."""
    generator = torch.Generator().manual_seed(0)
    resolution, shape = config["resolution"], config["network"]
    x_t = torch.randn(batch_size, 3, resolution, resolution, generator=generator)
    log_snr = torch.full((batch_size,), LOG_SNR, device=device)
    x_t = x_t.to(device).contiguous(memory_format=torch.channels_last)
    if shape["style"] == "none":
        return x_t, log_snr, None
    tokens = torch.randn(batch_size, shape["max_tokens"], shape["text_dim"], generator=generator)
    mask = torch.ones(tokens.shape[:2], dtype=torch.bool)
    return x_t, log_snr, TextCondition(tokens.to(device), mask.to(device), tokens.mean(1).to(device))


def waiting_ns() -> tuple[int, int] | None:
    """How long this thread has run, and how long it was ready but had no CPU (Linux); None elsewhere."""
    try:
        running, waiting = Path("/proc/self/schedstat").read_text().split()[:2]
    except (OSError, ValueError):
        return None
    return int(running), int(waiting)


def waiting_share(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    """Of the time since `before`, the share this thread waited for a CPU that others had; None when unknown."""
    if before is None or after is None:
        return None
    running, waiting = (end - start for start, end in zip(before, after, strict=True))
    return waiting / (running + waiting) if running + waiting else 0.0


class Reset:
    """Peak resident memory from now on, where the system lets it be reset (Linux); else of the whole process."""

    def __init__(self, device: torch.device):
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            return
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")

    def peak_mb(self) -> float:
        if self.device.type == "cuda":
            return peak_memory_mb(self.device)
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
        except OSError:
            return peak_memory_mb(self.device)
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 2**10


def recipe_of(variant: str) -> str | None:
    """The folder of models/int8 that a variant is made from; None for those of the float model."""
    name = "static_int8" if variant == UNCOMPILED else variant
    return name if name in RECIPES else None


def unavailable(variant: str) -> str | None:
    """Why a variant can't be measured here, None when it can."""
    return NO_COMPILER if variant in COMPILED and not has_cpp_compiler() else None


def load(variant: str, model: str, int8: str, device: torch.device) -> tuple[Callable[..., Tensor], dict[str, Any]]:
    """A variant ready to be called, and its config. The int8 variants run on the CPU only."""
    if recipe_of(variant):
        network, config = load_quantized(int8, recipe_of(variant))
    else:
        network, config = load_network(model)
        network = network.requires_grad_(False).to(device, memory_format=torch.channels_last)
    return (CompiledNetwork(network, config) if variant in COMPILED else network), config


def measure(task: dict[str, Any]) -> dict[str, Any]:
    """Everything about one variant that has to be measured in its own process."""
    environment = set_up(Runtime(**task["runtime"]))
    variant, device = task["variant"], environment.device
    if recipe_of(variant):
        device = torch.device("cpu")
    start = time.perf_counter()
    network, config = load(variant, task["model"], task["int8"], device)
    bfloat16 = variant == "bfloat16"

    def call(batch: tuple) -> Tensor:
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=bfloat16):
            return network(*batch)

    largest = max(task["batch_sizes"])
    first = largest if variant in COMPILED else 1
    output = call(inputs(config, first, device))
    result: dict[str, Any] = {"start_s": time.perf_counter() - start, "device": device.type, "batches": {}}
    result["precision"] = "bfloat16" if bfloat16 else "int8" if recipe_of(variant) else "float32"
    if bfloat16 and not has_fast_bfloat16(device):
        result["note"] = "this CPU emulates bfloat16"
    peak = Reset(device)
    before = waiting_ns()
    result["batches"] = _batches(call, config, device, task)
    waited = waiting_share(before, waiting_ns())
    if waited is not None:
        result["waiting_for_cpu"] = waited
    result["peak_memory_mb"] = peak.peak_mb()
    output = call(inputs(config, 1, device)).float().cpu()
    write_bytes_atomic(task["output"], save({"prediction": output.contiguous()}))
    return result


def _batches(call: Callable[[tuple], Tensor], config: dict, device: torch.device, task: dict) -> dict[str, Any]:
    """Batch size -> numbers, or -> the reason why there are none; smallest first, so that the rest can be foreseen."""

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    found: dict[str, Any] = {}
    per_picture = 0.0
    for size in sorted(task["batch_sizes"]):
        if per_picture * size > TOO_SLOW_S:
            found[str(size)] = f"left out: a call would take about {per_picture * size:.0f} s"
            continue
        batch = inputs(config, size, device)
        seconds = timed(lambda batch=batch: call(batch), synchronize, task["repeats"], BUDGET_S)
        found[str(size)] = summarize(seconds, size)
        per_picture = statistics.median(seconds) / size
    return found


def main() -> None:
    task = json.load(sys.stdin)
    write_json(task["result"], measure(task))


if __name__ == "__main__":
    main()
