"""Calibration data: real pictures, all noise levels, dropped captions, a function of data and seed."""

import numpy as np
import pytest
import torch

from shift_diffusion.data.images import to_float
from shift_diffusion.process.schedules import make_schedule
from shift_diffusion.quantization.calibration import input_ranges, noised_batches
from tests.quantization.conftest import make_inputs


class Pictures:
    """The part of PreparedData that calibration reads, over random pictures without captions."""

    def __init__(self, count=40, resolution=8):
        self.pixels = torch.randint(0, 256, (count, 3, resolution, resolution), dtype=torch.uint8)

    def split(self, name):
        half = len(self.pixels) // 2
        return np.arange(half) if name == "train" else np.arange(half, len(self.pixels))

    def batch(self, indices, resolution):
        return self.pixels[torch.as_tensor(indices)]

    def text(self, indices):
        return None


@pytest.fixture
def pictures():
    torch.manual_seed(0)
    return Pictures()


def batches(data, **how):
    return noised_batches(
        data, how.pop("split", "train"), make_schedule("flow"), 8, **{"count": 2, "batch_size": 8, "seed": 0} | how
    )


def test_noise_levels_cover_the_whole_process_evenly(pictures):
    log_snr = torch.cat([batch.log_snr for batch in batches(pictures)])
    t = torch.sigmoid(-log_snr.double() / 2).sort().values
    assert t[0] < 0.1
    assert t[-1] > 0.9
    assert t.diff().max() < 0.15


def test_the_same_call_gives_the_same_inputs_and_another_seed_other_noise(pictures):
    one, two, other = batches(pictures), batches(pictures), batches(pictures, seed=100)
    assert all(torch.equal(a.x_t, b.x_t) for a, b in zip(one, two, strict=True))
    assert not torch.equal(one[0].x_t, other[0].x_t)


def test_pictures_come_from_the_split_and_small_splits_are_used_up(pictures):
    found = batches(pictures, count=100, split="validation")
    assert sum(len(batch.x_t) for batch in found) == 20
    cleanest = max((batch for batch in found), key=lambda batch: float(batch.log_snr.max()))
    place = int(cleanest.log_snr.argmax())
    real = to_float(pictures.pixels[20:])
    distance = (real - cleanest.x_t[place]).square().flatten(1).mean(1)
    assert distance.min() < 0.02


def test_ranges_hold_what_the_layers_see(network):
    batch = make_inputs(seed=2)
    ranges = input_ranges(network, {"core.stem": network.core.stem}, [batch], 7)
    scale, zero = ranges["core.stem"]
    assert scale > 0
    assert 0 <= zero <= 127
    seen = []
    handle = network.core.stem.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    network(*batch)
    handle.remove()
    inside = ((seen[0] >= -zero * scale) & (seen[0] <= (127 - zero) * scale)).float().mean()
    assert inside > 0.98  # the observer trades the last outliers for finer steps
