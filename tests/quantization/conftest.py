"""Tiny networks of the project's own kind with weights that do something, and inputs for them."""

import pytest
import torch

from shift_diffusion.models.conditioning import TextCondition
from shift_diffusion.models.spec import NetworkSpec, OuterSpec
from shift_diffusion.models.unet import NestedUNet
from shift_diffusion.quantization.calibration import Inputs

TEXT_DIM, MAX_TOKENS, RESOLUTION = 12, 6, 16


def make_spec(style="sdxl", width=16):
    return NetworkSpec(
        widths=(width, 2 * width),
        attention=(False, True),
        num_blocks=1,
        outer=(OuterSpec(width=width, patch=2, num_blocks=1),),
        embedding_dim=32,
        head_dim=8,
        norm_groups=4,
        dropout=0.0,
        shift=True,
        reach=(1.0, 1.0, 1.0),
        gate=True,
        init_scale=0.3,
        style=style,
        text_dim=0 if style == "none" else TEXT_DIM,
        max_tokens=MAX_TOKENS,
        family="flow",
        prediction="velocity",
        num_bins=0,
    )


def make_network(style="sdxl", width=16):
    """Zero-initialised branches get small weights: a layer of zeros would hide what int8 does to it."""
    torch.manual_seed(0)
    network = NestedUNet(make_spec(style, width)).eval().requires_grad_(False)
    for value in network.parameters():
        if value.dim() > 1 and not value.any():
            torch.nn.init.normal_(value, std=0.05)
    return network.to(memory_format=torch.channels_last)


def make_config(network):
    process = {"name": "flow", "num_train_timesteps": 1000, "timestep_shift": 1.0, "prediction": "velocity"}
    return {
        "network": network.spec.to_dict(),
        "process": process,
        "text": {"encoder": "none"},
        "resolution": RESOLUTION,
    }


def make_inputs(style="sdxl", count=8, seed=0, log_snr=None):
    draw = torch.Generator().manual_seed(seed)
    levels = torch.linspace(-6, 6, count) if log_snr is None else torch.full((count,), float(log_snr))
    x_t = torch.randn(count, 3, RESOLUTION, RESOLUTION, generator=draw)
    if style == "none":
        return Inputs(x_t, levels, None, None)
    text = TextCondition(
        torch.randn(count, MAX_TOKENS, TEXT_DIM, generator=draw),
        torch.arange(MAX_TOKENS) < torch.arange(1, count + 1)[:, None],
        torch.randn(count, TEXT_DIM, generator=draw),
    )
    return Inputs(x_t, levels, text, torch.arange(count) % 4 == 3)


@pytest.fixture
def network():
    return make_network()


@pytest.fixture
def batches():
    return [make_inputs(seed=seed) for seed in range(2)]
