"""Perceptual networks: frozen, in eval mode, float32, sensitive to what matters."""

from pathlib import Path

import pytest
import torch
from torchvision.transforms.functional import normalize

from shift_diffusion.config import ConfigError
from shift_diffusion.models.perceptual import VGG_LAYERS, load_perceptual


@pytest.fixture(scope="module")
def lite():
    return load_perceptual("efficientnet_lite0")


def test_features_are_a_quarter_of_the_resolution_and_deterministic(lite):
    x = torch.rand(2, 3, 32, 48) * 2 - 1
    features = lite(x)
    assert features.shape == (2, 144, 8, 12)
    assert torch.equal(features, lite(x))
    torch.testing.assert_close(lite(x[:1]), features[:1])


def test_frozen_in_eval_mode_and_yet_differentiable_by_the_picture(lite):
    lite.train()
    assert not any(module.training for module in lite.modules())
    assert not any(parameter.requires_grad for parameter in lite.parameters())
    x = torch.zeros(1, 3, 16, 16, requires_grad=True)
    lite(x).sum().backward()
    assert x.grad.abs().sum() > 0


def test_float32_also_under_autocast(lite):
    x = torch.rand(1, 3, 32, 32) * 2 - 1
    with torch.autocast("cpu", torch.bfloat16):
        features = lite(x.bfloat16())
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, lite(x.bfloat16().float()))


def test_features_see_structure_more_than_brightness(lite):
    torch.manual_seed(0)
    edges = (torch.arange(32) // 4 % 2 * 1.0 - 0.5).expand(1, 3, 32, 32)
    brighter, turned = edges + 0.05, edges.transpose(2, 3)
    reference = lite(edges)
    assert (lite(brighter) - reference).abs().mean() < 0.3 * (lite(turned) - reference).abs().mean()


def test_small_pictures_and_unknown_names_are_refused(lite):
    with pytest.raises(ValueError, match="16 pixels"):
        lite(torch.zeros(1, 3, 8, 32))
    with pytest.raises(ConfigError, match="efficientnet_lite0, vgg19"):
        load_perceptual("resnet")


@pytest.fixture(scope="module")
def weights_of_vgg(tmp_path_factory):
    """Random weights where torchvision keeps the downloaded ones, so that the loader finds them."""
    from torchvision.models import VGG19_Weights, vgg19

    home = tmp_path_factory.mktemp("home")
    (home / "hub" / "checkpoints").mkdir(parents=True)
    with torch.device("meta"):
        empty = vgg19(weights=None, init_weights=False).state_dict()
    torch.manual_seed(0)
    state = {name: torch.zeros(1).expand(value.shape) for name, value in empty.items()}
    for name, value in empty.items():
        if name.startswith("features.") and int(name.split(".")[1]) < VGG_LAYERS:
            state[name] = torch.randn(value.shape) * (2 / max(value[0].numel(), 2)) ** 0.5
    torch.save(state, home / "hub" / "checkpoints" / Path(VGG19_Weights.IMAGENET1K_V1.url).name)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCH_HOME", str(home))
        yield VGG19_Weights.IMAGENET1K_V1.transforms()


@pytest.mark.parametrize("name", ["efficientnet_lite0", "vgg19"])
def test_pictures_are_normalized_as_the_network_was_trained(weights_of_vgg, name):
    """Case 10: against a reference pass of the picture in [0, 1]."""
    mean, std = (weights_of_vgg.mean, weights_of_vgg.std) if name == "vgg19" else ([0.498] * 3, [0.502] * 3)
    network, x = load_perceptual(name), torch.rand(2, 3, 32, 32) * 2 - 1
    reference = network.features(normalize((x + 1) / 2, mean, std))
    torch.testing.assert_close(network(x), reference, atol=1e-4, rtol=1e-4)
    if name == "vgg19":  # the other one's normalization is nearly that to [-1, 1]
        assert (network.features(x) - reference).abs().mean() > 0.05 * reference.abs().mean()


def test_vgg_ends_after_relu3_3():
    from torchvision.models import vgg19

    layers = vgg19(weights=None).features[:VGG_LAYERS]
    names = [type(layer).__name__ for layer in layers]
    assert names.count("MaxPool2d") == 2
    assert names[-1] == "ReLU"
    assert sum(name == "Conv2d" for name in names[names.index("MaxPool2d", 5) :]) == 3
    assert layers(torch.zeros(1, 3, 32, 32)).shape == (1, 256, 8, 8)
