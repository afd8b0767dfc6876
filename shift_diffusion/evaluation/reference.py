"""What generated pictures are compared with: features of the real ones, made once and kept."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from shift_diffusion.config import ConfigError
from shift_diffusion.data.store import PreparedData
from shift_diffusion.evaluation.appearance import appearance
from shift_diffusion.evaluation.features import Extractor
from shift_diffusion.evaluation.frechet import FeatureStatistics
from shift_diffusion.evaluation.metrics import check_count
from shift_diffusion.evaluation.spectrum import power_spectrum
from shift_diffusion.files import new_folder, read_json, write_bytes_atomic, write_json
from shift_diffusion.progress import progress_bar

MAX_FEATURES = 50_000  # per split, 250 MB: statistics are of all pictures, neighbors and KID of at most so many
FORMAT_VERSION = 1
MAX_PICTURES = 2_000  # for spectrum and appearance
CHUNK = 512  # pictures in memory at a time
SPLITS = ("train", "validation")


@dataclass(frozen=True)
class Reference:
    """Real pictures as the scores see them.

    name: of the feature network. resolution: side in pixels. content_hash: of the prepared data set.
    features: split -> (n, d) float32; indices: split -> (n,) int64 into the data set's pictures.
    statistics: split -> of all its pictures. spectrum: (R // 2,) mean power of the training pictures by frequency.
    appearance: color and variety of the training pictures (see `appearance.appearance`).
    """

    name: str
    resolution: int
    content_hash: str
    features: dict[str, Tensor]
    indices: dict[str, Tensor]
    statistics: dict[str, FeatureStatistics]
    spectrum: Tensor
    appearance: dict[str, float]

    @property
    def key(self) -> str:
        """What two scores must share to be comparable."""
        return f"{self.name}@{self.resolution}-{self.content_hash}"

    @classmethod
    def load(cls, folder: str | Path) -> Reference:
        """Reads a folder written by `build_reference`. Raises ConfigError for another format version."""
        info = read_json(Path(folder) / "info.json")
        if info["format_version"] != FORMAT_VERSION:
            raise ConfigError(
                [f"{folder}: format version {info['format_version']} is unknown; this code reads {FORMAT_VERSION}"]
            )
        with safe_open(Path(folder) / "features.safetensors", framework="pt") as file:
            stored = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
        return cls(
            info["features"],
            info["resolution"],
            info["content_hash"],
            {split: stored[f"{split}.features"] for split in SPLITS},
            {split: stored[f"{split}.indices"] for split in SPLITS},
            {
                split: FeatureStatistics(info["count"][split], stored[f"{split}.mean"], stored[f"{split}.factor"])
                for split in SPLITS
            },
            stored["spectrum"],
            info["appearance"],
        )


def build_reference(data: PreparedData, resolution: int, extractor: Extractor, out: str | Path) -> dict:
    """Extracts features of both splits into `out` and returns what info.json holds.

    Nothing is flipped, cropped or left out: every picture once, as prepared.
    """
    tensors: dict[str, Tensor] = {}
    counts = {split: len(data.split(split)) for split in SPLITS}
    for split in SPLITS:
        check_count(counts[split], f"data, {split} split")
    with progress_bar(sum(counts.values()), "features of real pictures") as bar:
        for split in SPLITS:
            tensors |= _split_tensors(data, resolution, extractor, split, bar)
    pictures = data.batch(_spread(np.asarray(data.split("train")), MAX_PICTURES), resolution)
    tensors["spectrum"] = power_spectrum(pictures)
    info = {
        "format_version": FORMAT_VERSION,
        "features": extractor.name,
        "resolution": resolution,
        "content_hash": data.content_hash,
        "count": counts,
        "appearance": appearance(pictures),
        "stored": {split: len(tensors[f"{split}.features"]) for split in SPLITS},
    }
    with new_folder(out) as folder:
        write_bytes_atomic(folder / "features.safetensors", save(tensors))
        write_json(folder / "info.json", info)
    return info


def _split_tensors(data: PreparedData, resolution: int, extractor: Extractor, split: str, bar) -> dict[str, Tensor]:
    indices = np.asarray(data.split(split))
    kept = _spread(indices, MAX_FEATURES)
    found: list[Tensor] = []

    def batches() -> Iterator[Tensor]:
        for start in range(0, len(indices), CHUNK):
            part = indices[start : start + CHUNK]
            features = extractor(data.batch(part, resolution))
            found.append(features[torch.from_numpy(np.isin(part, kept))])
            bar.update(len(part))
            yield features

    statistics = FeatureStatistics.of_batches(batches())
    return {
        f"{split}.features": torch.cat(found),
        f"{split}.indices": torch.from_numpy(kept.astype(np.int64)),
        f"{split}.mean": statistics.mean,
        f"{split}.factor": statistics.factor.contiguous(),
    }


def _spread(indices: np.ndarray, most: int) -> np.ndarray:
    """All, or an evenly spread choice of `most`, in the same order."""
    if len(indices) <= most:
        return indices
    return indices[np.linspace(0, len(indices) - 1, most).round().astype(np.int64)]
