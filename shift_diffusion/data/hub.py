"""The sources that download: torchvision's data sets and the Hugging Face hub's (or a local copy of one).

The data set opens at first use. Only the main process downloads; workers read what it has fetched.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from shift_diffusion.config import PROJECT_ROOT, ConfigError, Data
from shift_diffusion.data.sources import Item, hash_of


def _chosen(count: int, wanted: int | None) -> Sequence[int]:
    """All positions, or `wanted` of them by hash: a fixed random choice, as data sets are often sorted by class."""
    if wanted is None or wanted >= count:
        return range(count)
    return sorted(sorted(range(count), key=hash_of)[:wanted])


class TorchvisionDataset:
    """`torchvision:NAME`, e.g. CIFAR10, CelebA, FashionMNIST; the split that the data set has by default."""

    name = "torchvision"
    reads_files = False

    def __init__(self, dataset: str, data: Data):
        self.dataset_name, self.num_images = dataset, data.num_images
        self.root = PROJECT_ROOT / data.path
        self.notes: dict[str, Any] = {}
        self._dataset: Any = None

    def open(self, download: bool) -> Any:
        """The torchvision data set, without transforms.

        Raises:
            ConfigError: no such data set, or it can't be fetched.
        """
        if self._dataset is None:
            from torchvision import datasets

            kind = getattr(datasets, self.dataset_name, None)
            if not inspect.isclass(kind):
                raise ConfigError([f"data.source: torchvision has no data set '{self.dataset_name}'"])
            known = inspect.signature(kind).parameters
            options = {"root": str(self.root), "download": download}
            if "target_type" in known and self.dataset_name == "CelebA":
                options["target_type"] = "attr"
            try:
                self._dataset = kind(**{name: value for name, value in options.items() if name in known})
            except (RuntimeError, OSError, ImportError, TypeError) as error:
                raise ConfigError([f"data.source: torchvision:{self.dataset_name} can't be opened: {error}"]) from error
        return self._dataset

    def __len__(self) -> int:
        count = len(self.open(download=True))
        return min(count, self.num_images or count)

    def items(self) -> Iterator[Item]:
        dataset = self.open(download=True)
        for index in _chosen(len(dataset), self.num_images):
            caption = self._caption(dataset, index)
            yield Item(id=f"{self.dataset_name}-{index:07}", caption=caption, key=index)

    def _caption(self, dataset: Any, index: int) -> str:
        """Names of the class, or of the attributes that are set (CelebA); else the target as text."""
        target = _target(dataset, index)
        if hasattr(dataset, "attr_names"):
            set_ones = [name for name, value in zip(dataset.attr_names, target, strict=False) if int(value) == 1]
            return ", ".join(name.replace("_", " ").lower() for name in set_ones)
        classes = getattr(dataset, "classes", None)
        if isinstance(target, str):
            return target
        number = int(target)
        label = classes[number] if classes else f"class {number}"
        return (" ".join(label) if isinstance(label, tuple) else str(label)).replace("_", " ").lower()

    def load(self, item: Item) -> Image.Image:
        return self.open(download=False)[item.key][0]

    def identity(self, item: Item) -> None:
        return None

    def content_hash(self) -> str:
        """Published data sets don't change: their name stands for their content."""
        return hash_of("torchvision", self.dataset_name, self.root, self.num_images)


def _target(dataset: Any, index: int) -> Any:
    """The target, without decoding the picture where the data set holds targets in a list."""
    for name in ("targets", "labels", "_labels", "attr"):
        held = getattr(dataset, name, None)
        if held is not None and len(held) == len(dataset):
            return held[index]
    return dataset[index][1]


class HuggingFaceDataset:
    """`huggingface:NAME`: the train split of a data set of the hub, or of a local folder in its form."""

    name = "huggingface"
    reads_files = False

    def __init__(self, dataset: str, data: Data):
        self.dataset_name, self.num_images = dataset, data.num_images
        self.notes: dict[str, Any] = {}
        self._dataset: Any = None

    def open(self) -> Any:
        """The data set with its pictures as encoded bytes.

        Raises:
            ConfigError: the package `datasets` is missing, the data set can't be fetched, or holds no pictures.
        """
        if self._dataset is None:
            try:
                import datasets
            except ImportError as error:
                raise ConfigError(["data.source: huggingface needs the extra: pip install '.[huggingface]'"]) from error
            try:
                dataset = datasets.load_dataset(self.dataset_name, split="train")
            except Exception as error:  # the library raises a dozen kinds, for network, names and formats
                raise ConfigError([f"data.source: huggingface:{self.dataset_name} can't be opened: {error}"]) from error
            pictures = [name for name, kind in dataset.features.items() if isinstance(kind, datasets.Image)]
            if not pictures:
                raise ConfigError([f"data.source: huggingface:{self.dataset_name} has no column of pictures"])
            self.column = pictures[0]
            self._dataset = dataset.cast_column(self.column, datasets.Image(decode=False))
        return self._dataset

    def __len__(self) -> int:
        count = len(self.open())
        return min(count, self.num_images or count)

    def items(self) -> Iterator[Item]:
        dataset = self.open()
        text = next((name for name in ("text", "caption") if name in dataset.column_names), None)
        label = next((name for name in ("label", "labels") if name in dataset.column_names), None)
        column = text or label
        captions = dataset.select_columns([column]) if column else None
        for index in _chosen(len(dataset), self.num_images):
            value = "" if captions is None else captions[index][column]
            if column and column == label and hasattr(dataset.features[column], "int2str"):
                value = dataset.features[column].int2str(value).replace("_", " ")
            yield Item(id=f"{index:08}", caption=str(value), key=index)

    def load(self, item: Item) -> bytes:
        picture = self.open()[item.key][self.column]
        if picture["bytes"] is not None:
            return picture["bytes"]
        return Path(picture["path"]).read_bytes()

    def identity(self, item: Item) -> None:
        return None

    def content_hash(self) -> str:
        """The fingerprint that the library gives the data it has fetched."""
        return hash_of("huggingface", self.dataset_name, self.num_images, self.open()._fingerprint)
