"""The source `folder`: any tree of picture files, with captions beside them.

A caption comes from, in this order: `NAME.txt` beside the picture, the folder's `metadata.jsonl` or
`metadata.csv` (columns `file_name` and `text` or `caption`, as Hugging Face's imagefolder has them), or
the name of the class, which is the first folder below the root.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator
from typing import Any

from shift_diffusion.config import PROJECT_ROOT, ConfigError, Data
from shift_diffusion.data.captions import METADATA, Captions
from shift_diffusion.data.sources import ContentDigest, Item, hash_of

SUFFIXES = frozenset(
    f".{name}"
    for name in (
        *("jpg", "jpeg", "jpe", "jfif", "mpo", "png", "apng", "gif", "bmp", "dib", "webp", "tif", "tiff"),
        *("ppm", "pgm", "pbm", "pnm", "jp2", "j2k", "avif", "heic", "heif", "ico", "tga"),
    )
)
_SYSTEM_FILES = frozenset({"thumbs.db", "desktop.ini"})
MAX_BYTES = 512 << 20
"""Larger files are refused unread."""


class Folder:
    """Items are ordered by their path relative to the root, in code points, whatever the file system says."""

    name = "folder"
    reads_files = True

    def __init__(self, data: Data):
        self.root = PROJECT_ROOT / data.path  # an absolute path stays what it is
        self.num_images = data.num_images
        self.empty_class = data.empty_class
        self.notes: dict[str, Any] = {}
        self._classes: dict[str, int] = {}  # first folder below the root -> pictures in it
        self._texts: set[str] = set()
        if not self.root.is_dir():
            raise ConfigError([f"data.path: {self.root} is not a folder"])

    def __len__(self) -> int:
        return len(self.paths)

    @functools.cached_property
    def paths(self) -> list[str]:
        """Of the pictures, relative to the root, sorted; the tree is walked once."""
        return self._chosen(self._scan())

    def items(self) -> Iterator[Item]:
        paths = self.paths
        classes = {name: number for number, name in enumerate(self._classes)}
        captions = Captions(self.root, paths, self._texts)
        if captions.num_without_picture:
            self.notes["captions_without_picture"] = captions.num_without_picture
        for relative in paths:
            label = relative.split("/")[0] if "/" in relative else None
            named = None if label is None else _readable(label)
            details = {} if label is None else {"class": named, "class_number": classes[label]}
            yield Item(id=_readable(relative), caption=captions.of(relative, named), key=relative, details=details)

    def load(self, item: Item) -> bytes:
        path = os.path.join(self.root, item.key)
        about = os.stat(path)
        if not stat.S_ISREG(about.st_mode):  # reading a pipe would wait for ever
            raise OSError(errno.EINVAL, "not a regular file")
        if about.st_size > MAX_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MAX_BYTES >> 20} MB")
        with open(path, "rb") as file:
            return file.read()

    def identity(self, item: Item) -> None:
        return None

    def content_hash(self) -> str:
        digest = ContentDigest()
        for item in self.items():
            try:
                digest.add(item, hashlib.sha256(self.load(item)).hexdigest())
            except OSError:
                digest.add(item, "")
        return digest.hexdigest()

    def _scan(self) -> list[str]:
        """Relative paths of picture files, sorted; fills `notes`, the classes and the text files."""
        found, ignored = [], Counter()
        for folder, subfolders, files in os.walk(self.root):  # doesn't follow links to folders: no endless loops
            relative = os.path.relpath(folder, self.root).replace(os.sep, "/")
            prefix = "" if relative == "." else f"{relative}/"
            links = {name for name in subfolders if os.path.islink(os.path.join(folder, name))}
            hidden = {name for name in (*subfolders, *files) if name.startswith(".")}
            subfolders[:] = [name for name in subfolders if name not in hidden]
            kinds = Counter(_kind(name) for name in files if name not in hidden)
            ignored.update(hidden=len(hidden), link_to_folder=len(links - hidden), other=kinds["other"])
            found += [prefix + name for name in files if name not in hidden and _kind(name) == "picture"]
            self._texts.update(prefix + name for name in files if name.endswith(".txt"))
            if prefix:
                self._classes[relative.split("/")[0]] += kinds["picture"]
            else:
                self._classes = dict.fromkeys(sorted(set(subfolders) - links), 0)
        self._note(ignored, [name for name, count in self._classes.items() if not count])
        return sorted(found)

    def _note(self, ignored: Counter, empty: list[str]) -> None:
        self.notes = {f"ignored_{name}": count for name, count in ignored.items() if count}
        if not empty:
            return
        if self.empty_class == "refuse":
            raise ConfigError(
                [f"data.path: no picture in class folder {name} (data.empty_class: refuse)" for name in empty]
            )
        self.notes["empty_classes"] = empty

    def _chosen(self, paths: list[str]) -> list[str]:
        """All, or `num_images` of them by the hash of their path: a fixed random choice over all classes."""
        if self.num_images is None or len(paths) <= self.num_images:
            return paths
        self.notes["left_out_by_num_images"] = len(paths) - self.num_images
        return sorted(sorted(paths, key=hash_of)[: self.num_images])


def _readable(name: str) -> str:
    """File names are bytes; what is not UTF-8 in one can't go into a report."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _kind(name: str) -> str:
    """What a file is, by its name: picture, known (of use or well known to be of none), other."""
    lower = name.lower()
    suffix = os.path.splitext(lower)[1]
    if suffix in SUFFIXES:
        return "picture"
    return "known" if suffix == ".txt" or lower in METADATA or lower in _SYSTEM_FILES else "other"
