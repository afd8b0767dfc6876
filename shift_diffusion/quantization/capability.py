"""What this machine offers to int8: arithmetic units, oneDNN kernels, a C++ compiler."""

from __future__ import annotations

import platform

import torch

INT8_UNITS = ("amx_int8", "avx512_vnni", "avx_vnni")  # they sum products in 32 bits; older x86 sums pairs in 16


def int8_unit() -> str | None:
    """The best int8 unit of this CPU, None when products are summed in 16 bits (or it is no x86)."""
    found = torch.cpu.get_capabilities()
    return next((name for name in INT8_UNITS if found.get(name)), None)


def safe_activation_bits() -> int:
    """8 with an int8 unit, else 7.

    Without one, oneDNN multiplies by vpmaddubsw, whose sum of two uint8 * int8 products saturates at 32767: two
    activations of 255 already overflow it with weights of 65 and more. 2 * 127 * 127 = 32258 never does.
    """
    return 8 if int8_unit() else 7


def has_int8_kernels() -> bool:
    """Whether oneDNN's x86 int8 convolution and linear kernels are in this build of torch."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return x86 and torch.backends.mkldnn.is_available() and hasattr(torch.ops.onednn, "qconv2d_pointwise")


def has_cpp_compiler() -> bool:
    """Whether torch.compile can build CPU code here."""
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except (InvalidCxxCompiler, OSError):
        return False
    return True


def describe_cpu() -> dict[str, str | int]:
    """JSON-able: what int8 speed depends on."""
    found = torch.cpu.get_capabilities()
    return {
        "cpu": str(found.get("cpu_name", platform.processor() or platform.machine())),
        "vector_units": torch.backends.cpu.get_cpu_capability(),
        "int8_unit": int8_unit() or "none",
        "cores": int(found.get("num_physical_cores", 0)) or torch.get_num_threads(),
    }
