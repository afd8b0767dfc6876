"""The prepared data on disk: one memory-mapped uint8 array per resolution, captions, text, a manifest.

    images_64.npy ...   (N, R, R, 3) uint8
    manifest.jsonl      one picture a line: id, caption, sha256, split, size and mode of the source ...
    text.safetensors    embeddings of the unique captions (absent when text.encoder is none)
    info.json           format_version, counts, content_hash

Reading is lazy: opening a million pictures costs their captions, not their pixels.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shift_diffusion.config import ConfigError
from shift_diffusion.data.text_store import TextStore
from shift_diffusion.files import read_json
from shift_diffusion.models.conditioning import TextCondition

FORMAT_VERSION = 1

Indices = Sequence[int] | np.ndarray | Tensor


class PreparedData:
    """Read access to `data/prepared`."""

    def __init__(self, folder: Path, info: dict[str, Any]):
        self.folder, self.info = folder, info
        self.content_hash: str = info["content_hash"]
        self.source: str = info["source"]
        self.resolutions: tuple[int, ...] = tuple(info["resolutions"])
        text = folder / "text.safetensors"
        self._text = TextStore(text) if text.is_file() else None

    @classmethod
    def open(cls, folder: str | Path) -> PreparedData:
        """Opens a prepared folder.

        Raises:
            ConfigError: when there is none, or it was written by another version of this code.
        """
        folder = Path(folder)
        try:
            info = read_json(folder / "info.json")
        except (OSError, ValueError) as error:
            raise ConfigError([f"{folder}: no prepared data ({error}); run `dvc repro prepare`"]) from error
        if info.get("format_version") != FORMAT_VERSION:
            found = info.get("format_version")
            raise ConfigError([f"{folder}: format version {found}, this code reads {FORMAT_VERSION}; prepare again"])
        return cls(folder, info)

    def __len__(self) -> int:
        return self.info["num_images"]

    @functools.cached_property
    def manifest(self) -> list[dict[str, Any]]:
        """Every row as a dictionary; for small sets, the other methods read columns."""
        return list(self._rows())

    def _rows(self) -> Iterator[dict[str, Any]]:
        """The manifest's rows one at a time: what reads a column must not hold a million dictionaries."""
        with open(self.folder / "manifest.jsonl", encoding="utf-8") as lines:
            yield from map(json.loads, lines)

    @functools.cached_property
    def _line_starts(self) -> np.ndarray:
        starts = np.zeros(len(self) + 1, np.int64)
        with open(self.folder / "manifest.jsonl", "rb") as lines:
            starts[1:] = np.cumsum(np.fromiter(map(len, lines), np.int64))
        return starts

    @functools.cached_property
    def captions(self) -> list[str]:
        """What each picture is trained with; "" where there is no caption."""
        return [row["caption"] for row in self._rows()]

    @functools.cached_property
    def full_captions(self) -> list[str]:
        """Captions that leave nothing out, where the source has them (avatars); else the same as `captions`."""
        return [row.get("full_caption", row["caption"]) for row in self._rows()]

    @functools.cache  # noqa: B019 - lives as long as the data it belongs to
    def split(self, name: str) -> np.ndarray:
        """Row numbers (int64, rising) of "train" or "validation"."""
        if name not in ("train", "validation"):
            raise ValueError(f"split {name!r} is unknown: train, validation")
        return np.array([i for i, row in enumerate(self._rows()) if row["split"] == name], dtype=np.int64)

    def ids(self, indices: Indices) -> list[str]:
        """The pictures' names in their source."""
        with open(self.folder / "manifest.jsonl", "rb") as file:
            found = []
            for index in indices:
                file.seek(self._line_starts[int(index)])
                found.append(json.loads(file.readline())["id"])
            return found

    @functools.cache  # noqa: B019
    def images(self, resolution: int) -> np.ndarray:
        """All pictures, (N, R, R, 3) uint8, memory-mapped and read-only.

        Raises:
            ConfigError: when the data were prepared without that resolution.
        """
        if resolution not in self.resolutions:
            held = ", ".join(map(str, self.resolutions))
            raise ConfigError([f"{self.folder}: holds resolutions {held}, not {resolution}; run `dvc repro prepare`"])
        return np.load(self.folder / f"images_{resolution}.npy", mmap_mode="r")

    def batch(self, indices: Indices, resolution: int) -> Tensor:
        """(B, 3, R, R) uint8 with channels_last strides: one gather, no further copy."""
        rows = self.images(resolution)[np.asarray(indices)]
        return torch.from_numpy(rows).permute(0, 3, 1, 2)

    @property
    def text_dim(self) -> int | None:
        """Size of a token's embedding; None without text."""
        return None if self._text is None else self._text.dim

    def text(self, indices: Indices) -> TextCondition | None:
        """The captions' embeddings as CPU float32; None without text."""
        return None if self._text is None else self._text.rows(np.asarray(indices))
