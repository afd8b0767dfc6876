"""What int8 does to predictions: all conditioning styles, early and late, and what stays as it was."""

import copy

import pytest
import torch

from shift_diffusion.quantization import dynamic_int8, static_int8, weight_int8
from shift_diffusion.quantization.capability import safe_activation_bits
from shift_diffusion.quantization.int8_layers import StaticInt8
from tests.quantization.conftest import make_inputs, make_network


def convert(name, network, batches):
    if name == "static_int8":
        return static_int8.convert(network, batches, [], 7)
    return {"dynamic_int8": dynamic_int8, "weight_int8": weight_int8}[name].convert(network, [])


@pytest.mark.parametrize("style", ["flux", "qwen", "sdxl", "none"])
def test_predictions_stay_close_at_all_noise_levels_and_in_all_styles(style):
    network = make_network(style)
    calibration = [make_inputs(style, seed=seed) for seed in range(3)]
    for name, limit in (("static_int8", 0.08), ("weight_int8", 0.03), ("dynamic_int8", 0.03)):
        int8 = convert(name, network, calibration).network
        for log_snr in (-6, 0, 6):
            batch = make_inputs(style, seed=9, log_snr=log_snr)
            exact = network(*batch)
            error = static_int8.relative_error(int8(*batch), exact)
            assert 0 < error < limit, (name, log_snr, error)


def test_without_a_caption_and_with_dropped_ones_too(network, batches):
    int8 = convert("static_int8", network, batches).network
    x_t, log_snr, text, _ = make_inputs(seed=5)
    for arguments in ((None, None), (text, torch.ones(8, dtype=torch.bool))):
        exact = network(x_t, log_snr, *arguments)
        assert static_int8.relative_error(int8(x_t, log_snr, *arguments), exact) < 0.08
    torch.testing.assert_close(int8(x_t, log_snr, None), int8(x_t, log_snr, text, torch.ones(8, dtype=torch.bool)))


@pytest.mark.parametrize("name", ["static_int8", "dynamic_int8", "weight_int8"])
def test_the_float_network_is_left_as_it_was(name, network, batches):
    before, exact = copy.deepcopy(network.state_dict()), network(*batches[0])
    convert(name, network, batches)
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())
    assert torch.equal(network(*batches[0]), exact)
    assert not any(module._forward_pre_hooks for module in network.modules())


def test_picture_k_does_not_depend_on_its_batch(network, batches):
    """Scales are fixed beforehand, so what else is in the batch can't matter (dynamic_int8 can't promise that)."""
    int8 = convert("static_int8", network, batches).network
    batch = make_inputs(seed=3, log_snr=1.0)
    alone = int8(batch.x_t[:1], batch.log_snr[:1], type(batch.text)(*(part[:1] for part in batch.text)), batch.drop[:1])
    torch.testing.assert_close(int8(*batch)[:1], alone, rtol=1e-3, atol=1e-3)


def test_an_eight_bit_recipe_uses_kernels_only_where_they_cannot_overflow(network, batches):
    int8 = static_int8.convert(network, batches, [], 8).network
    layers = [layer for layer in int8.modules() if isinstance(layer, StaticInt8)]
    assert all((layer._packed is not None) <= (safe_activation_bits() == 8) for layer in layers)
    batch = make_inputs(seed=4)
    assert static_int8.relative_error(int8(*batch), network(*batch)) < 0.05


def test_calibration_is_repeatable(network, batches):
    first, second = (convert("static_int8", network, batches).state for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
