"""Where pictures come from, behind one small interface: `open_source(data_section)`.

Light: no torch, no decoding. A source lists its items in a fixed order; worker processes open the same
source again and load single items.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from PIL import Image

from shift_diffusion.config import ConfigError, Data
from shift_diffusion.data import avatars


@dataclass(frozen=True, kw_only=True)
class Item:
    """One picture of a source, before it is decoded."""

    id: str  # unique in the source, and the same on every machine: a relative path, a number
    caption: str  # "" where there is none
    key: Any  # what `Source.load` needs; goes to worker processes, hence a plain value
    details: dict[str, Any] = field(default_factory=dict)  # further columns of the manifest, JSON values


class Source(Protocol):
    name: str
    notes: dict[str, Any]  # counts of what was seen but isn't a picture, warnings; complete after items()
    reads_files: bool  # content_hash() must read every picture; else it is known at once

    def __len__(self) -> int: ...

    def items(self) -> Iterator[Item]:
        """Every picture, in an order that doesn't depend on the machine."""
        ...

    def load(self, item: Item) -> bytes | Image.Image:
        """The picture: an encoded file, or an image that needs no decoding."""
        ...

    def identity(self, item: Item) -> str | None:
        """A content key known before loading (drawn pictures), or None: then the file's bytes are hashed."""
        ...

    def content_hash(self) -> str:
        """sha256 over everything the source would give; computed without decoding."""
        ...


def open_source(data: Data) -> Source:
    """The source that `data.source` names.

    Raises:
        ConfigError: for an unknown name, a missing folder, a missing optional package, a failed download.
    """
    kind, _, name = data.source.partition(":")
    if kind == "avatars":
        return Avatars(data.num_images)
    if kind == "digits":
        return Digits(data.num_images)
    if kind == "folder":
        from shift_diffusion.data.folder import Folder

        return Folder(data)
    if kind == "torchvision":
        from shift_diffusion.data.hub import TorchvisionDataset

        return TorchvisionDataset(name, data)
    if kind == "huggingface":
        from shift_diffusion.data.hub import HuggingFaceDataset

        return HuggingFaceDataset(name, data)
    raise ConfigError(
        [f"data.source: '{data.source}' is unknown: avatars, digits, folder, torchvision:NAME, huggingface:NAME"]
    )


def content_hash(data: Data) -> str:
    """What the source holds, as one sha256: another hash means new data. Reads files, decodes nothing."""
    return open_source(data).content_hash()


def hash_of(*parts: object) -> str:
    """sha256 of values, each ended by a line break so that ("ab", "c") isn't ("a", "bc")."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(f"{part}\n".encode("utf-8", "surrogateescape"))  # file names needn't be valid text
    return digest.hexdigest()


class ContentDigest:
    """The content hash of a source that has to read its pictures: over names, captions and bytes, in order."""

    def __init__(self):
        self._digest = hashlib.sha256()

    def add(self, item: Item, identity: str) -> None:
        """`identity` is the sha256 of the picture's file, or "" for one that can't be read."""
        self._digest.update(hash_of(item.id, item.caption, identity).encode())

    def hexdigest(self) -> str:
        return self._digest.hexdigest()


class Avatars:
    """Drawn faces with captions: see avatars.py. Picture n is the same however many are asked for."""

    name = "avatars"
    reads_files = False
    default_count = 6000
    _master = 128  # pixels; a picture is drawn once, at twice the usual largest side

    def __init__(self, num_images: int | None):
        self.count = num_images or self.default_count
        self.notes: dict[str, Any] = {}

    def __len__(self) -> int:
        return self.count

    def items(self) -> Iterator[Item]:
        for index in range(self.count):
            caption, full = avatars.caption_of(index)
            yield Item(id=f"avatar-{index:06}", caption=caption, key=index, details={"full_caption": full})

    def load(self, item: Item) -> Image.Image:
        return Image.fromarray(avatars.render_master(avatars.draw(item.key), self._master))

    def identity(self, item: Item) -> str:
        return hash_of("avatar", avatars.VERSION, self._master, item.key)

    def content_hash(self) -> str:
        return hash_of("avatars", avatars.VERSION, self._master, self.count)


class Digits:
    """scikit-learn's 1,797 handwritten digits of 8x8 pixels: no download, for fast tests."""

    name = "digits"
    reads_files = False
    words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

    def __init__(self, num_images: int | None):
        from sklearn.datasets import load_digits

        digits = load_digits()
        self.images = np.rint(digits.images * (255 / 16)).astype(np.uint8)  # (N, 8, 8), 0..16 in the package
        self.labels = digits.target
        self.count = min(num_images or len(self.images), len(self.images))
        self.notes: dict[str, Any] = {}

    def __len__(self) -> int:
        return self.count

    def items(self) -> Iterator[Item]:
        for index in range(self.count):
            label = int(self.labels[index])
            yield Item(
                id=f"digit-{index:04}",
                caption=f"a handwritten {self.words[label]}",
                key=index,
                details={"class": self.words[label]},
            )

    def load(self, item: Item) -> Image.Image:
        return Image.fromarray(self.images[item.key])

    def identity(self, item: Item) -> str:
        return hash_of("digit", item.key)

    def content_hash(self) -> str:
        return hash_of("digits", self.count)
