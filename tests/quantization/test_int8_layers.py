"""Single layers: rounding, agreement of the ways to compute, and the overflow of CPUs without int8 units."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from shift_diffusion.quantization.capability import (
    has_int8_kernels,
    int8_unit,
    safe_activation_bits,
)
from shift_diffusion.quantization.int8_layers import (
    dequantize_weight,
    quantize_weight,
    static_layer,
)

needs_kernels = pytest.mark.skipif(not has_int8_kernels(), reason="no oneDNN int8 kernels in this build")

LAYERS = {
    "3x3": (nn.Conv2d(8, 12, 3, padding=1), (2, 8, 9, 9)),
    "1x1": (nn.Conv2d(8, 12, 1), (2, 8, 5, 5)),
    "strided": (nn.Conv2d(8, 12, 3, 2, 1), (2, 8, 9, 9)),
    "dilated": (nn.Conv2d(8, 12, 3, padding=2, dilation=2), (2, 8, 9, 9)),
    "grouped": (nn.Conv2d(8, 12, 3, padding=1, groups=4), (2, 8, 9, 9)),
    "depthwise": (nn.Conv2d(8, 8, 3, padding=1, groups=8), (2, 8, 9, 9)),
    "no bias": (nn.Conv2d(8, 12, 3, padding=1, bias=False), (2, 8, 9, 9)),
    "linear": (nn.Linear(16, 24), (3, 16)),
    "linear on tokens": (nn.Linear(16, 24, bias=False), (3, 5, 16)),
}


def quantized(layer, x, bits=7):
    low, high = float(x.min().clamp_max(0)), float(x.max().clamp_min(0))
    scale = (high - low) / (2**bits - 1)
    int8 = static_layer(layer.requires_grad_(False), bits)
    int8.set_input_range(scale, round(-low / scale))
    return int8


def test_weights_are_off_by_half_a_step_at_most_and_scales_are_per_channel():
    weight = torch.randn(6, 3, 3, 3) * torch.logspace(-4, 2, 6).view(-1, 1, 1, 1)
    rounded, scale = quantize_weight(weight)
    assert rounded.dtype == torch.int8
    assert scale.shape == (6,)
    assert rounded.abs().amax((1, 2, 3)).eq(127).all()  # each channel uses its whole range
    error = (dequantize_weight(rounded, scale) - weight).abs()
    assert (error <= 0.5001 * scale.view(-1, 1, 1, 1)).all()


def test_a_channel_of_zeros_stays_zero_and_finite():
    rounded, scale = quantize_weight(torch.zeros(4, 8))
    assert not rounded.any()
    assert (scale > 0).all()
    assert not dequantize_weight(rounded, scale).any()


@pytest.mark.parametrize("name", LAYERS)
def test_float_and_int8_layers_agree_within_the_rounding(name):
    layer, shape = LAYERS[name]
    x = torch.randn(shape)
    int8 = quantized(layer, x)
    int8.prepare(kernels=False)
    error = (int8(x) - layer(x)).norm() / layer(x).norm()
    assert error < 0.03


@needs_kernels
@pytest.mark.parametrize("name", LAYERS)
def test_kernels_compute_what_the_rounded_numbers_say(name):
    layer, shape = LAYERS[name]
    x = torch.randn(shape)
    int8 = quantized(layer, x)
    int8.prepare(kernels=False)
    exact = int8(x)
    int8.prepare(kernels=True)
    torch.testing.assert_close(int8(x), exact, rtol=1e-4, atol=1e-5)


def _largest_sums(bits):
    """A layer whose sums are the largest there are, and its exact output."""
    layer = nn.Conv2d(64, 8, 3, padding=1, bias=False)
    layer.weight.data.fill_(1.0)
    x = torch.ones(1, 64, 8, 8)
    int8 = static_layer(layer.requires_grad_(False), bits)
    int8.set_input_range(1.0 / (2**bits - 1), 0)
    return int8, x, F.conv2d(x, layer.weight, padding=1)


@needs_kernels
def test_the_largest_sums_do_not_overflow_with_the_bits_chosen_for_this_cpu():
    int8, x, exact = _largest_sums(safe_activation_bits())
    int8.prepare(kernels=True)
    torch.testing.assert_close(int8(x), exact, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.skipif(int8_unit() is not None, reason="this CPU sums int8 products in 32 bits")
def test_eight_bits_do_overflow_on_a_cpu_without_int8_units():
    """The reason for 7 bits: if this fails, `safe_activation_bits` can be dropped."""
    int8, x, exact = _largest_sums(8)
    int8.prepare(kernels=True)
    assert (int8(x) - exact).abs().max() > 0.3 * exact.abs().max()


def test_values_outside_the_calibrated_range_are_clamped_not_wrapped():
    layer = nn.Linear(4, 4)
    int8 = quantized(layer, torch.linspace(-1, 1, 4)[None])
    int8.prepare(has_int8_kernels())
    inside, outside = (int8(torch.full((1, 4), value)) for value in (1.0, 50.0))
    torch.testing.assert_close(inside, outside)
