"""The moving average: decay with warm-up, the live weights come back."""

import pytest
import torch
from torch import nn

from shift_diffusion.training.ema import Ema


def test_decay_warms_up_to_its_value():
    ema = Ema(nn.Linear(2, 2), 0.9)
    decays = []
    for _ in range(200):
        decays.append(ema.current_decay)
        ema.update()
    assert decays[0] == 0.1
    assert decays == sorted(decays)
    assert decays[-1] == 0.9


def test_average_follows_the_recurrence():
    layer = nn.Linear(3, 1, bias=False)
    ema = Ema(layer, 0.5)
    expected = layer.weight.detach().clone()
    for step in range(20):
        with torch.no_grad():
            layer.weight.add_(1.0)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * layer.weight.detach()
        ema.update()
    torch.testing.assert_close(ema.averages["weight"], expected)


def test_applied_swaps_and_restores_also_after_an_error():
    layer = nn.Linear(2, 2)
    ema = Ema(layer, 0.9)
    with torch.no_grad():
        layer.weight.zero_()
    seen = []

    def fail_inside() -> None:
        with ema.applied():
            seen.append(layer.weight.detach().clone())
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail_inside()
    assert torch.equal(seen[0], ema.averages["weight"])
    assert seen[0].any()
    assert not layer.weight.any()


def test_memory_layout_is_kept():
    conv = nn.Conv2d(8, 8, 3).to(memory_format=torch.channels_last)
    assert Ema(conv, 0.9).averages["weight"].is_contiguous(memory_format=torch.channels_last)
