"""A training step of the nested UNet against diffusers' UNet2DModel of equal widths: python -m benchmarks.unet

Forward, backward and AdamW step on the same pictures, in turns. Both get one block a level, the same widths, attention
at the coarsest level, and parameter counts within 10 %. Peak memory is that of a step in a process of its own.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.timing import interleaved, line
from shift_diffusion.models.spec import NetworkSpec, OuterSpec
from shift_diffusion.models.unet import NestedUNet

PEER = "UNet2DModel"
CASES = {64: (16, (24, 48, 96, 128)), 32: (32, (48, 96, 128))}  # pixels: batch size, widths from fine to coarse


def nested(widths: tuple[int, ...], patches: tuple[int, ...], shift: bool = True) -> NestedUNet:
    """Two core levels, the finer widths as outer levels; everything on, as in params.yaml, but unconditional."""
    outer = tuple(
        OuterSpec(width=w, patch=p, num_blocks=1) for w, p in zip(widths[:-2][::-1], patches[::-1], strict=True)
    )
    spec = NetworkSpec(
        widths=widths[-2:],
        attention=(False, True),
        num_blocks=1,
        outer=outer,
        embedding_dim=192,
        head_dim=32,
        norm_groups=8,
        dropout=0.0,
        shift=shift,
        reach=(1.0,) * len(widths),
        gate=True,
        init_scale=0.0,
        style="none",
        text_dim=0,
        max_tokens=1,
        family="flow",
        prediction="velocity",
        num_bins=0,
    )
    return NestedUNet(spec).to(memory_format=torch.channels_last)


def peer(resolution: int, widths: tuple[int, ...]) -> nn.Module:
    from diffusers import UNet2DModel

    plain = len(widths) - 1
    return UNet2DModel(
        sample_size=resolution,
        layers_per_block=1,
        block_out_channels=widths,
        norm_num_groups=8,
        attention_head_dim=32,
        down_block_types=("DownBlock2D",) * plain + ("AttnDownBlock2D",),
        up_block_types=("AttnUpBlock2D",) + ("UpBlock2D",) * plain,
    )


def training_step(network: nn.Module, resolution: int, batch_size: int, dtype: torch.dtype) -> Callable[[], None]:
    torch.manual_seed(0)
    optimizer = torch.optim.AdamW(network.parameters(), 1e-4, fused=True)
    x, target, t = *torch.randn(2, batch_size, 3, resolution, resolution), torch.rand(batch_size)

    def step() -> None:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            output = network(x, 8 * t - 4) if isinstance(network, NestedUNet) else network(x, t * 1000).sample
        F.mse_loss(output.float(), target).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def networks(resolution: int) -> dict[str, Callable[[], nn.Module]]:
    """Constructors by name; the second has params.yaml's wider, patched outer levels instead of equal widths."""
    _, widths = CASES[resolution]
    outer = len(widths) - 2
    return {
        PEER: lambda: peer(resolution, widths),
        "nested, equal widths": lambda: nested(widths, (1,) * outer),
        "nested, equal widths, no shift": lambda: nested(widths, (1,) * outer, shift=False),
        "nested, as in params.yaml": lambda: nested((128, 96)[-outer:] + widths[-2:], (4, 2)[-outer:]),
    }


def count(network: nn.Module) -> float:
    return sum(parameter.numel() for parameter in network.parameters()) / 1e6


def peak_memory(resolution: int, name: str, dtype: torch.dtype, threads: int) -> None:
    """Prints how far three steps lift the peak of resident memory over its start, in MB; in a process of its own."""
    torch.set_num_threads(threads)
    step = training_step(networks(resolution)[name](), resolution, CASES[resolution][0], dtype)
    before = _resident("VmRSS")
    for _ in range(3):
        step()
    print(_resident("VmHWM") - before)


def _resident(key: str) -> float:
    """A line of the kernel's account of this process, in MB; a child's ru_maxrss would start at its parent's."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def measured_memory(resolution: int, name: str, options: argparse.Namespace) -> float:
    command = [sys.executable, "-m", "benchmarks.unet", "--memory-of", name, "--resolution", str(resolution)]
    command += ["--dtype", options.dtype, "--threads", str(options.threads)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def report(resolution: int, options: argparse.Namespace) -> None:
    batch_size, widths = CASES[resolution]
    built = {name: make() for name, make in networks(resolution).items()}
    dtype = getattr(torch, options.dtype)
    steps = {name: training_step(network, resolution, batch_size, dtype) for name, network in built.items()}
    seconds = interleaved(steps, options.rounds)
    print(f"{resolution} pixels, batch {batch_size}, widths {widths}, {options.dtype}, {options.threads} threads")
    for name, network in built.items():
        rate = batch_size / min(seconds[name])
        memory = f", peak {measured_memory(resolution, name, options):.0f} MB" if options.memory else ""
        print(
            f"{line(seconds, PEER, name)}; {rate:.1f} images/s, {count(network):.2f} M parameters{memory}", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2, help="1 = CPU time of one thread, robust on a busy machine")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--resolution", type=int, choices=CASES, default=None)
    parser.add_argument("--memory", action="store_true", help="also measure peak memory, a process per network")
    parser.add_argument("--memory-of", default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.memory_of:
        peak_memory(options.resolution, options.memory_of, getattr(torch, options.dtype), options.threads)
        return
    for resolution in CASES if options.resolution is None else [options.resolution]:
        report(resolution, options)


if __name__ == "__main__":
    main()
