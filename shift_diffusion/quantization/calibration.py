"""What the activations look like: real pictures at all noise levels, seen by an observer in front of every layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from shift_diffusion.config import Quantize
from shift_diffusion.data.images import to_float
from shift_diffusion.data.store import PreparedData
from shift_diffusion.models.conditioning import TextCondition
from shift_diffusion.process.forward import add_noise
from shift_diffusion.process.samplers import initial_noise
from shift_diffusion.process.schedules import NoiseSchedule, make_schedule
from shift_diffusion.quiet import quiet_libraries

_GOLDEN = (5**0.5 - 1) / 2  # multiples of it modulo 1 cover (0, 1) evenly, for any number of them
DROPPED_EVERY = 4  # one caption in four is dropped, so that the null embedding is seen too


@dataclass(frozen=True)
class Inputs:
    """One batch as the network takes it. x_t (B, 3, R, R) float32, log_snr (B,) float32, text, drop (B,) bool."""

    x_t: Tensor
    log_snr: Tensor
    text: TextCondition | None
    drop: Tensor | None

    def __iter__(self) -> Iterator:
        return iter((self.x_t, self.log_snr, self.text, self.drop))


def calibration_and_held_out(
    data: PreparedData, config: Mapping[str, Any], section: Quantize
) -> tuple[list[Inputs], list[Inputs]]:
    """Batches of training pictures to calibrate with, and as many of held-out ones to measure errors with.

    config: of the model folder. The seeds of the two differ, so no noise is shared.
    """
    process = {key: value for key, value in config["process"].items() if key != "prediction"}
    how = {"count": section.calibration_batches, "batch_size": section.batch_size}
    resolution, schedule = config["resolution"], make_schedule(**process)
    conditional = config["network"]["style"] != "none"
    return (
        noised_batches(data, "train", schedule, resolution, conditional=conditional, seed=0, **how),
        noised_batches(data, "validation", schedule, resolution, conditional=conditional, seed=1_000_000, **how),
    )


def noised_batches(
    data: PreparedData,
    split: str,
    schedule: NoiseSchedule,
    resolution: int,
    *,
    conditional: bool = True,
    count: int,
    batch_size: int,
    seed: int,
) -> list[Inputs]:
    """`count` batches of pictures spread evenly over a split, each picture at its own noise level in (0, 1).

    A function of its arguments and the data: picture k has the noise of seed + k and the time frac((k + 1/2) * golden
    ratio).
    """
    indices = np.asarray(data.split(split))
    wanted = min(count * batch_size, len(indices))
    chosen = indices[np.linspace(0, len(indices) - 1, wanted).round().astype(np.int64)]
    return [
        _noised(data, schedule, resolution, conditional, chosen[start : start + batch_size], range(start, wanted), seed)
        for start in range(0, wanted, batch_size)
    ]


def _noised(
    data: PreparedData,
    schedule: NoiseSchedule,
    resolution: int,
    conditional: bool,
    indices: np.ndarray,
    numbers: range,
    seed: int,
) -> Inputs:
    numbers = numbers[: len(indices)]
    x_0 = to_float(data.batch(indices, resolution))
    eps = initial_noise([seed + number for number in numbers], tuple(x_0.shape[1:]))
    t = schedule.snap((torch.tensor(list(numbers), dtype=torch.float64) + 0.5) * _GOLDEN % 1.0)
    x_t = add_noise(x_0, eps, schedule.alpha(t).float(), schedule.sigma(t).float())
    text = data.text(indices) if conditional else None
    drop = None if text is None else torch.tensor(list(numbers)) % DROPPED_EVERY == DROPPED_EVERY - 1
    return Inputs(x_t, schedule.log_snr(t).float(), text, drop)


@contextmanager
def hooked(layers: Mapping[str, nn.Module], hook: Callable[[str, Tensor], None]) -> Iterator[None]:
    """Calls hook(name, input) before every call of every layer."""

    def listen(name: str) -> Callable:
        return lambda module, inputs: hook(name, inputs[0])

    handles = [layer.register_forward_pre_hook(listen(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@torch.no_grad()
def input_ranges(
    network: nn.Module, layers: Mapping[str, nn.Module], batches: Iterable[Inputs], activation_bits: int
) -> dict[str, tuple[float, int]]:
    """Scale and zero point of each layer's input, by the histogram observer of PT2E (least squared rounding error).

    Layers that were never called are left out.
    """
    with quiet_libraries():
        from torchao.quantization.pt2e import HistogramObserver

    observers: dict[str, nn.Module] = {}

    def observe(name: str, x: Tensor) -> None:
        if name not in observers:
            observers[name] = HistogramObserver(
                dtype=torch.uint8, qscheme=torch.per_tensor_affine, quant_min=0, quant_max=2**activation_bits - 1
            )
        observers[name](x.detach().float().contiguous())

    with hooked(layers, observe):
        for batch in batches:
            network(*batch)
    found = {name: observer.calculate_qparams() for name, observer in observers.items()}
    return {name: (float(scale), int(zero)) for name, (scale, zero) in found.items()}
