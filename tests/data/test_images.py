"""The road between 8 bits and [-1, 1]."""

import pytest
import torch

from shift_diffusion.data.images import to_float, to_uint8


def test_all_values_survive_the_round_trip():
    values = torch.arange(256, dtype=torch.uint8)
    x = to_float(values)
    assert (x.min(), x.max()) == (-1, 1)
    assert (to_uint8(x) == values).all()


def test_values_outside_the_range_are_clamped_not_wrapped():
    x = torch.tensor([-1.3, -1.0, 0.0, 1.0, 1.2])
    assert to_uint8(x).tolist() == [0, 0, 128, 255, 255]


def test_memory_layout_is_kept():
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8).contiguous(memory_format=torch.channels_last)
    assert to_float(images).is_contiguous(memory_format=torch.channels_last)


def test_wrong_input_is_refused():
    with pytest.raises(TypeError, match="uint8"):
        to_float(torch.zeros(1))
    with pytest.raises(ValueError, match="finite"):
        to_uint8(torch.tensor([float("nan")]))
