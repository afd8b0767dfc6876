"""Where and how numbers are computed: device, precision, threads, determinism."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

import torch

from shift_diffusion.config import ConfigError, Runtime

_DTYPES = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Environment:
    """`dtype` is the autocast dtype, None = plain float32."""

    device: torch.device
    dtype: torch.dtype | None
    threads: int

    @property
    def precision(self) -> str:
        return next(name for name, dtype in _DTYPES.items() if dtype == self.dtype)

    def autocast(self) -> contextlib.AbstractContextManager:
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.device.type, self.dtype)


def set_up(runtime: Runtime) -> Environment:
    """Applies the section `runtime` to this process.

    Raises:
        ConfigError: when the device isn't there or can't compute in the wanted precision.
    """
    device = resolve_device(runtime.device)
    if runtime.threads:
        torch.set_num_threads(runtime.threads)
    torch.use_deterministic_algorithms(True, warn_only=device.type == "mps")
    if device.type == "cuda":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
        torch.backends.cudnn.benchmark = False
    return Environment(device, _DTYPES[resolve_precision(runtime.precision, device)], torch.get_num_threads())


def resolve_device(name: str) -> torch.device:
    available = ["cpu"]
    if torch.cuda.is_available():
        available.insert(0, "cuda")
    if torch.backends.mps.is_available():
        available.insert(0, "mps")
    if name == "auto":
        return torch.device(available[0])
    if name not in available:
        raise ConfigError([f"runtime.device: '{name}' is not available here; allowed: auto, {', '.join(available)}"])
    return torch.device(name)


def resolve_precision(name: str, device: torch.device) -> str:
    """`auto` is bfloat16 where the hardware multiplies it fast: elsewhere it is emulated, and far slower."""
    if name == "float16" and device.type == "cpu":
        raise ConfigError(["runtime.precision: 'float16' needs an accelerator; on cpu: auto, float32, bfloat16"])
    if name != "auto":
        return name
    return "bfloat16" if has_fast_bfloat16(device) else "float32"


def has_fast_bfloat16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False


def peak_memory_mb(device: torch.device) -> float:
    """Largest memory of this process so far: of the accelerator, or resident on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    import resource
    import sys

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
