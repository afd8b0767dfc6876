"""Speed, memory, size and quality of every variant of one model, side by side, with what the numbers depend on.

Nothing is promised: a variant that is slower here has a speedup below 1 and is named as slower.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from shift_diffusion.benchmark_worker import recipe_of, unavailable
from shift_diffusion.config import Benchmark, ConfigError, Runtime
from shift_diffusion.files import read_json
from shift_diffusion.plots import bar_plot
from shift_diffusion.progress import progress_bar
from shift_diffusion.quantization.capability import describe_cpu
from shift_diffusion.quantization.quantize import QUALITY
from shift_diffusion.quantization.saving import WEIGHTS
from shift_diffusion.runtime import Environment

BASE = "float32"
PACKAGES = ("torch", "torchao", "numpy", "safetensors")
BUSY = 0.1  # share of the time waiting for a CPU, above which times mean nothing
MAX_SECONDS = 900  # of one variant, compilation included


class BenchmarkFailed(RuntimeError):
    """The process that measured a variant has died; the message holds the end of what it said."""


def environment_of(environment: Environment) -> dict[str, Any]:
    """JSON-able: everything the numbers depend on besides the model."""
    found = {
        "device": environment.device.type,
        "threads": environment.threads,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        **describe_cpu(),
    }
    if environment.device.type == "cuda":
        found["accelerator"] = torch.cuda.get_device_name(environment.device)
    return found


class Benchmarking:
    """The work of the stage.

    Args:
        model: folder of the float model. int8: what the stage `quantize` has written.
        bfloat16: its scores with so many pictures, which `quantize` doesn't make; None where that takes too long.
    """

    def __init__(
        self,
        model: str | Path,
        int8: str | Path,
        section: Benchmark,
        runtime: Runtime,
        bfloat16: Callable[[int], Mapping[str, float] | None] | None = None,
    ):
        self.model, self.int8, self.section, self.runtime = Path(model), Path(int8), section, runtime
        self._bfloat16 = bfloat16
        if not (self.int8 / QUALITY).is_file():
            raise ConfigError([f"{self.int8 / QUALITY}: missing; run `dvc repro quantize`"])
        self._known = read_json(self.int8 / QUALITY)

    def run(self, environment: Environment) -> dict[str, Any]:
        """variant -> numbers, and "environment". Variants that this machine can't run say why, as their "status"."""
        variants = [BASE, *(name for name in self.section.variants if name != BASE)]
        found: dict[str, Any] = {}
        with tempfile.TemporaryDirectory() as scratch, progress_bar(len(variants), "benchmark", "variant") as bar:
            for variant in variants:
                reason = unavailable(variant)
                found[variant] = {"status": reason} if reason else self._one(variant, Path(scratch))
                bar.update(1, variant)
            self._compare(found, Path(scratch))
        found["environment"] = environment_of(environment) | {"quality": self._known["about"]}
        return found

    def _one(self, variant: str, scratch: Path) -> dict[str, Any]:
        result = measure_apart(variant, self.model, self.int8, self.section, self.runtime, scratch)
        recipe = recipe_of(variant)
        file = self.int8 / recipe / WEIGHTS if recipe else self.model / "model.safetensors"
        batches = result.pop("batches")
        numbers = {size: value for size, value in batches.items() if not isinstance(value, str)}
        left_out = {f"batch{size}": value for size, value in batches.items() if isinstance(value, str)}
        return {
            "status": "measured",
            **{
                key: {f"batch{size}": value[key] for size, value in numbers.items()}
                for key in ("latency_ms", "latency_spread_ms", "pictures_per_s", "repeats")
            },
            **result,
            "file_mb": file.stat().st_size / 1e6,
            **({"left_out": left_out} if left_out else {}),
            **self._scores(variant),
        }

    def _scores(self, variant: str) -> dict[str, float]:
        """fid and kid by `quantize`, with the same seeds for all; a compiled program computes what it was made of."""
        made_of = BASE if variant == "compiled" else recipe_of(variant) or variant
        known = self._known["metrics"].get(made_of)
        if known is None:
            known = self._bfloat16(self._known["about"]["num_samples"]) if self._bfloat16 else None
        return {name: known[name] for name in ("fid", "kid")} if known else {}

    def _compare(self, found: dict[str, Any], scratch: Path) -> None:
        """Adds speedup over float32, the verdict in words, and how far the prediction is from float32's."""
        exact = load_file(_output(scratch, BASE))["prediction"].double()
        for variant, values in found.items():
            if values["status"] != "measured":
                continue
            values["speedup"] = {
                batch: found[BASE]["latency_ms"][batch] / latency
                for batch, latency in values["latency_ms"].items()
                if batch in found[BASE]["latency_ms"]
            }
            prediction = load_file(_output(scratch, variant))["prediction"].double()
            values["difference"] = float((prediction - exact).norm() / exact.norm())
            waited = max(found[BASE].get("waiting_for_cpu", 0.0), values.get("waiting_for_cpu", 0.0))
            values["verdict"] = verdict(variant, values["speedup"], waited)


def verdict(variant: str, speedup: Mapping[str, float], waited: float = 0.0) -> str:
    """One sentence for people; slower is called slower, and nothing is claimed from a machine that was busy.

    Args:
        waited: share of the time that this variant or float32 waited for a CPU which other processes had.
    """
    if waited > BUSY:
        return (
            f"not comparable: the machine was busy, {waited:.0%} of the time was spent waiting for a CPU; run it again"
        )
    if variant == BASE:
        return "what the others are compared with"
    parts = []
    for batch, ratio in speedup.items():
        word = "as fast as" if abs(ratio - 1) < 0.02 else "faster than" if ratio > 1 else "SLOWER than"
        parts.append(f"{batch}: {ratio:.2f}x, {word} {BASE}")
    return "; ".join(parts)


def _output(scratch: Path, variant: str) -> Path:
    return scratch / f"{variant}.safetensors"


def measure_apart(
    variant: str, model: Path, int8: Path, section: Benchmark, runtime: Runtime, scratch: Path
) -> dict[str, Any]:
    """Runs benchmark_worker in a fresh process and returns what it has found.

    Raises:
        BenchmarkFailed: it ended with an error or took longer than MAX_SECONDS.
    """
    task = {
        "variant": variant,
        "model": str(model),
        "int8": str(int8),
        "batch_sizes": list(section.batch_sizes),
        "repeats": section.repeats,
        "runtime": runtime.model_dump(),
        "output": str(_output(scratch, variant)),
        "result": str(scratch / f"{variant}.json"),
    }
    command = [sys.executable, "-m", "shift_diffusion.benchmark_worker"]
    try:
        done = subprocess.run(
            command, input=json.dumps(task), capture_output=True, text=True, timeout=MAX_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkFailed(f"benchmark of {variant}: no result after {MAX_SECONDS} s") from error
    if done.returncode:
        raise BenchmarkFailed(f"benchmark of {variant} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return read_json(task["result"])


def flat(found: Mapping[str, Any]) -> dict[str, float]:
    """All numbers of the variants under one name each, e.g. static_int8/latency_ms/batch16; what a tracker takes."""
    numbers: dict[str, float] = {}
    for variant, values in found.items():
        for name, value in values.items() if variant != "environment" else ():
            parts = value.items() if isinstance(value, dict) else [("", value)]
            numbers |= {
                f"{variant}/{name}/{key}".rstrip("/"): part for key, part in parts if isinstance(part, (int, float))
            }
    return numbers


def draw_chart(found: Mapping[str, Any], path: Path) -> None:
    """Latency per variant and batch size, with its spread."""
    measured = {name: values for name, values in found.items() if values.get("status") == "measured"}
    batches = {batch: None for values in measured.values() for batch in values["latency_ms"]}
    pick = {
        key: {
            batch: {name: values[key][batch] for name, values in measured.items() if batch in values[key]}
            for batch in batches
        }
        for key in ("latency_ms", "latency_spread_ms")
    }
    where = found["environment"]
    title = f"One step on {where['device']}, {where['threads']} threads, int8 unit: {where['int8_unit']}"
    bar_plot(path, pick["latency_ms"], "ms", title, pick["latency_spread_ms"])


def as_table(found: Mapping[str, Any]) -> str:
    """The same as text for a terminal."""
    lines = []
    for name, values in found.items():
        if name == "environment":
            continue
        if values["status"] != "measured":
            lines.append(f"{name:24}{values['status']}")
            continue
        times = ", ".join(
            f"{batch} {ms:.1f} ± {values['latency_spread_ms'][batch]:.1f} ms"
            for batch, ms in values["latency_ms"].items()
        )
        fid = f", FID {values['fid']:.1f}" if "fid" in values else ""
        sizes = f"{values['peak_memory_mb']:.0f} MB, file {values['file_mb']:.1f} MB"
        lines.append(f"{name:24}{times}; {sizes}{fid}; {values['verdict']}")
    where = found["environment"]
    lines.append(
        f"on {where['cpu']}, {where['vector_units']}, int8 unit {where['int8_unit']}, {where['threads']} threads"
    )
    return "\n".join(lines) + "\n"
