"""The shift operator against per-channel grid_sample, and every way that was tried: python -m benchmarks.shift

Prints time ratios (interleaved rounds), how far each way is from multiplying the tensor by a scalar, and how far the
operator is from the memory bandwidth limit: the time to read and write the bytes that can't be avoided.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.timing import interleaved, line, ratio
from shift_diffusion.models.shift import _shift_by_slices, shift2d
from shift_diffusion.models.shift_convolution import convolve

SHAPES = [(64, 64, 32, 32), (64, 96, 16, 16), (16, 64, 64, 64)]
GRID = "per-channel grid_sample"


def by_grid_sample(x: Tensor, offset: Tensor) -> Tensor:
    """The reference: every channel of every sample is a picture of its own, with its own grid."""
    batch, channels, height, width = x.shape
    offset = offset.expand(batch, -1, -1).reshape(batch * channels, 2, 1, 1)
    rows, columns = torch.meshgrid(torch.arange(height * 1.0), torch.arange(width * 1.0), indexing="ij")
    grid = [(columns - offset[:, 0]) * 2 / (width - 1) - 1, (rows - offset[:, 1]) * 2 / (height - 1) - 1]
    flat = x.reshape(batch * channels, 1, height, width)
    return F.grid_sample(flat, torch.stack(grid, -1), padding_mode="border", align_corners=True).view_as(x)


def by_grouped_convolution(x: Tensor, offset: Tensor) -> Tensor:
    """A 3x3 kernel for every channel of every sample, as one convolution with B * C groups."""
    batch, channels, height, width = x.shape
    taps = torch.stack([F.relu(-offset), 1 - offset.abs(), F.relu(offset)], -1).flip(-1)
    kernel = taps[:, :, 1, :, None] * taps[:, :, 0, None, :]
    padded = F.pad(x, (1, 1, 1, 1), mode="replicate").reshape(1, batch * channels, height + 2, width + 2)
    return F.conv2d(padded, kernel.reshape(-1, 1, 3, 3), groups=batch * channels).view_as(x)


def folded(x: Tensor, offset: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    """Sampling: the shift as part of the 1x1 convolution behind it, which thereby becomes a full 3x3 one."""
    taps = torch.stack([F.relu(-offset[0]), 1 - offset[0].abs(), F.relu(offset[0])], -1).flip(-1)
    kernel = (weight * (taps[:, 1, :, None] * taps[:, 0, None, :])).contiguous(memory_format=torch.channels_last)
    return lambda: F.conv2d(F.pad(x, (1, 1, 1, 1), mode="replicate"), kernel)


def step(way: Callable, x: Tensor, offset: Tensor, grad: Tensor) -> Callable[[], object]:
    """Forward and backward, gradients of x and offset returned and not accumulated."""
    x, offset = x.detach().requires_grad_(), offset.detach().requires_grad_()
    return lambda: torch.autograd.grad(way(x, offset), (x, offset), grad)


def training_ways(shape: tuple[int, ...], compiled: bool) -> dict[str, Callable[[], object]]:
    x, grad, offset = torch.randn(shape), torch.randn(shape), torch.rand(*shape[:2], 2) * 1.8 - 0.9
    last = {"memory_format": torch.channels_last}
    x_last, grad_last = x.contiguous(**last), grad.contiguous(**last)
    ways = {
        "x * 1.01": step(lambda x, offset: x * 1.01 + 0 * offset.sum(), x, offset, grad),
        GRID: step(by_grid_sample, x, offset, grad),
        "grouped convolution": step(by_grouped_convolution, x, offset, grad),
        "separable slices, autograd": step(lambda x, o: _shift_by_slices(x, o, 1), x_last, offset, grad_last),
        "shift2d (NCHW)": step(shift2d, x, offset, grad),
        "shift2d (channels_last)": step(shift2d, x_last, offset, grad_last),
    }
    if compiled:
        slices = torch.compile(lambda x, o: _shift_by_slices(x, o, 1), dynamic=False)
        ways["separable slices, compiled"] = step(slices, x_last, offset, grad_last)
    return ways


def sampling_ways(shape: tuple[int, ...]) -> dict[str, Callable[[], object]]:
    x, offset = torch.randn(shape), torch.rand(1, shape[1], 2) * 1.8 - 0.9
    x_last = x.contiguous(memory_format=torch.channels_last)
    weight = torch.randn(shape[1], shape[1], 1, 1)
    return {
        "x * 1.01": lambda: x * 1.01,
        GRID: lambda: by_grid_sample(x, offset),
        "separable slices": lambda: _shift_by_slices(x_last, offset, 1),
        "padded depthwise convolution": lambda: convolve(x_last, offset, 1),
        "shift2d (NCHW)": lambda: shift2d(x, offset),
        "shift2d (channels_last)": lambda: shift2d(x_last, offset),
        "1x1 convolution behind it, alone": lambda: F.conv2d(x_last, weight),
        "folded into that convolution": folded(x_last, offset, weight),
    }


def report(title: str, ways: dict[str, Callable[[], object]], shape: tuple[int, ...], rounds: int, passes: int) -> None:
    """`passes`: tensors of x's size that must be read or written at least."""
    seconds = interleaved(ways, rounds)
    print(f"{title} {shape}")
    for name in ways:
        print(line(seconds, GRID, name))
    scalar = 1 / ratio(seconds, "x * 1.01", "shift2d (channels_last)")[0]
    moved = passes * 4 * torch.Size(shape).numel()
    copied = 2 * 4 * torch.Size(shape).numel() * (passes > 2) + 2 * 4 * torch.Size(shape).numel()
    limit = min(seconds["x * 1.01"]) * moved / copied
    best = min(seconds["shift2d (channels_last)"])
    print(f"  shift2d takes {scalar:.1f}x the time of x * 1.01, {best / limit:.1f}x that of moving the bytes alone")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2, help="1 = CPU time of one thread, robust on a busy machine")
    parser.add_argument("--compiled", action="store_true", help="also torch.compile (needs a C++ compiler)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for shape in SHAPES:
        torch.manual_seed(0)
        # backward: read grad and x, write grad of x; forward: read x, write the result
        report("forward + backward", training_ways(shape, options.compiled), shape, options.rounds, passes=5)
        with torch.no_grad():
            report("sampling", sampling_ways(shape), shape, options.rounds, passes=2)


if __name__ == "__main__":
    main()
