"""The nested network: growth, switches that change speed and not results, shapes."""

import json

import pytest
import torch

from shift_diffusion.config import ConfigError
from shift_diffusion.models import matched_noise
from shift_diffusion.models.conditioning import TextCondition
from shift_diffusion.models.unet import build_network, grow, network_config, network_from_config
from shift_diffusion.process.bins import bin_logits_to_x0

PROCESSES = {
    "flow": {"schedule": "flow", "prediction": "velocity"},
    "flow-x0": {"schedule": "flow", "prediction": "x0"},
    "eps": {"schedule": "cosine", "prediction": "eps", "time_sampling": "uniform"},
    "v": {"schedule": "linear", "prediction": "v", "time_sampling": "uniform"},
    "x0": {"schedule": "linear", "prediction": "x0", "time_sampling": "uniform"},
}


def overlay(process="flow", style="sdxl", **sections):
    sampler = "dpmpp_2m"
    text = {"encoder": "none" if style == "none" else "minilm"}
    return {
        "process": PROCESSES[process],
        "conditioning": {"style": style},
        "text": text,
        "evaluate": {"sampler": sampler},
        **sections,
    }


def shake(network):
    """Weights everywhere, also where training starts from zero."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape))  # randn_like follows the memory layout
    return network


def text_of(batch, length=5, dim=384):
    return TextCondition(
        torch.randn(batch, length, dim), torch.ones(batch, length, dtype=torch.bool), torch.randn(batch, dim)
    )


def inputs(size, batch=3):
    torch.manual_seed(2)
    return torch.randn(batch, 3, size, size), 3 * torch.randn(batch), text_of(batch)


@pytest.mark.parametrize("process", PROCESSES)
@pytest.mark.parametrize("stage", [2, 3])
def test_grown_network_starts_as_the_inner_ones_low_frequency_prediction(tiny_params, process, stage):
    params = tiny_params(overlay(process))
    inner = shake(build_network(params, stage - 1))
    grown = grow(inner, params)
    x_t, log_snr, text = inputs(8 * 2 ** (stage - 1))
    family, prediction = inner.spec.family, inner.spec.prediction
    x_inner, inner_log_snr = matched_noise.pool(x_t, log_snr, family)
    low = matched_noise.low_frequency(inner(x_inner, inner_log_snr, text), x_inner, log_snr, family, prediction)
    torch.testing.assert_close(grown(x_t, log_snr, text), matched_noise.upsample(low), atol=1e-5, rtol=0)


def test_grown_network_of_bins_starts_with_the_inner_ones_estimate(tiny_params):
    params = tiny_params(overlay("flow-x0", loss={"cross_entropy": 1.0, "mse": 0.0, "num_bins": 8}))
    inner = shake(build_network(params, 1))
    x_t, log_snr, text = inputs(16)
    logits = grow(inner, params)(x_t, log_snr, text)
    assert logits.shape == (3, 3 * 8, 16, 16)
    x_inner, inner_log_snr = matched_noise.pool(x_t, log_snr, "flow")
    estimate = bin_logits_to_x0(inner(x_inner, inner_log_snr, text), 8)
    torch.testing.assert_close(bin_logits_to_x0(logits, 8), matched_noise.upsample(estimate), atol=1e-5, rtol=0)


@pytest.mark.parametrize("style", ["flux", "qwen", "sdxl", "none"])
def test_after_growth_every_weight_gets_a_gradient(tiny_params, style):
    params = tiny_params(overlay(style=style, shift={"init_scale": 0.5}))
    network = grow(grow(shake(build_network(params, 1)), params), params)
    x_t, log_snr, text = inputs(32)
    optimizer = torch.optim.SGD(network.parameters(), 1e-2)
    for _ in range(4):  # zero-initialized layers let the gradient through from the step after
        optimizer.zero_grad()
        drop = torch.tensor([True, False, False])
        output = network(x_t, log_snr, None if style == "none" else text, drop)
        (output - torch.randn_like(output)).square().mean().backward()
        optimizer.step()
    # a shift of attention keys changes no attention weight, so biases of keys alone have a gradient of zero
    silent = [name for name, p in network.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert silent == []
    inner = [p for name, p in network.named_parameters() if name.startswith("core.")]
    assert all(p.grad.isfinite().all() for p in inner)


def test_growth_changes_no_inner_weight_and_refuses_another_core(tiny_params):
    params = tiny_params()
    inner = shake(build_network(params, 1))
    state = grow(inner, params).state_dict()
    assert all(torch.equal(state[name], value) for name, value in inner.state_dict().items())
    with pytest.raises(ValueError, match="another inner network"):
        grow(inner, tiny_params({"model": {"widths": [24, 24]}}))


OTHER_INNER = {
    "flux": ({}, {"conditioning": {"style": "flux"}}, "joint"),
    "qwen": ({}, {"conditioning": {"style": "qwen"}}, "text.gain"),
    "captions added": (overlay(style="none"), {}, "text.null"),
    "captions removed": ({}, overlay(style="none"), "text.null"),
    "attention added": ({"model": {"attention": [False, False]}}, {}, "attentions"),
    "prediction": (overlay("flow"), overlay("flow-x0"), "prediction is velocity, not x0"),
}


@pytest.mark.parametrize(("before", "after", "named"), OTHER_INNER.values(), ids=OTHER_INNER)
def test_growth_refuses_an_inner_network_of_another_kind(tiny_params, before, after, named):
    """Case 16: no weight of the inner network may be dropped or start anew without a word."""
    inner = build_network(tiny_params(before), 1)
    with pytest.raises(ValueError, match=f"another inner network.*{named}"):
        grow(inner, tiny_params(after))


def test_fourth_stage_is_refused(tiny_params):
    params = tiny_params()
    with pytest.raises(ValueError, match="stage 4"):
        grow(build_network(params, 3), params)


@pytest.mark.parametrize("patches", [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_every_combination_of_patches(tiny_params, patches):
    outer = [{"width": 16, "patch": patch, "num_blocks": 1} for patch in patches]
    network = build_network(tiny_params({"model": {"outer": outer}}), 3)
    x_t, log_snr, text = inputs(32)
    assert shake(network)(x_t, log_snr, text).shape == x_t.shape


def test_one_noise_level_for_the_batch_gives_the_same(tiny_params):
    network = shake(build_network(tiny_params(), 2)).eval()
    x_t, _, text = inputs(16)
    each = network(x_t, torch.full((3,), 0.7), text).detach()  # with gradients: one offset per sample
    with torch.no_grad():
        torch.testing.assert_close(network(x_t, torch.full((3,), 0.7), text), each, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(network(x_t, torch.tensor([0.7]), text), each, atol=1e-4, rtol=1e-4)


def test_checkpointing_and_layout_change_no_result(tiny_params):
    x_t, log_snr, text = inputs(16)
    results = []
    for checkpointing, channels_last in ((False, True), (True, True), (False, False)):
        torch.manual_seed(0)
        runtime = {"gradient_checkpointing": checkpointing, "channels_last": channels_last}
        network = shake(build_network(tiny_params({"runtime": runtime}), 2))
        network(x_t, log_snr, text).square().mean().backward()
        results.append({name: parameter.grad for name, parameter in network.named_parameters()})
    for name, expected in results[0].items():
        torch.testing.assert_close(results[1][name], expected, msg=name)
        torch.testing.assert_close(results[2][name], expected, atol=1e-5, rtol=1e-3, msg=name)


def test_checkpointing_keeps_fewer_tensors(tiny_params):
    def kept(checkpointing):
        network = build_network(tiny_params({"runtime": {"gradient_checkpointing": checkpointing}}), 2)
        x_t, log_snr, text = inputs(16)
        sizes = {}
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: sizes.update({t.data_ptr(): t.nbytes}) or t, lambda t: t
        ):
            network(x_t, log_snr, text)
        return sum(sizes.values())

    assert kept(True) < 0.7 * kept(False)


def test_features_stay_channels_last(tiny_params):
    network = build_network(tiny_params(), 3)
    layouts = []
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(
                lambda _, args, out: layouts.append(args[0].is_contiguous(memory_format=torch.channels_last))
            )
    x_t, log_snr, text = inputs(32)
    network(x_t, log_snr, text)
    assert layouts
    assert all(layouts)


def test_config_rebuilds_the_network_and_strange_keys_are_refused(tiny_params):
    config = json.loads(json.dumps(network_config(tiny_params(), 3)))
    network = network_from_config(config)
    assert network.spec.to_dict() | {"outer": 0} == network_config(tiny_params(), 3) | {"outer": 0}
    with pytest.raises(ConfigError, match="'depth'.*|'family' is missing"):
        network_from_config({**{k: v for k, v in config.items() if k != "family"}, "depth": 3})


def test_text_of_unknown_width_must_be_said(tiny_params):
    clip = tiny_params({"text": {"encoder": "clip", "name": "folder"}})
    with pytest.raises(ConfigError, match="clip"):
        build_network(clip, 1)
    assert build_network(clip, 1, text_dim=512).spec.text_dim == 512


def test_shift_penalty_and_report(tiny_params):
    plain = build_network(tiny_params(), 3)
    assert plain.shift_penalty() == 0
    moved = build_network(tiny_params({"shift": {"init_scale": 0.5}}), 3)
    assert list(moved.shift_report()) == ["core_1", "core_0", "outer_0", "outer_1"]
    assert all(0.3 < value <= 0.5 for value in moved.shift_report().values())
    moved.shift_penalty().backward()
    assert moved.core.levels[0].shift.raw.grad.abs().sum() > 0
    off = build_network(tiny_params({"shift": {"enabled": False}}), 2)
    assert off.shift_report() == {}
    assert off.shift_penalty() == 0


def test_exports_without_looking_at_values(tiny_params):
    network = build_network(tiny_params(overlay(style="none")), 2).eval()
    x_t, log_snr, _ = inputs(16)
    with torch.no_grad():
        exported = torch.export.export(shake(network), (x_t, log_snr)).module()
        torch.testing.assert_close(exported(x_t, log_snr), network(x_t, log_snr), atol=1e-4, rtol=1e-4)
