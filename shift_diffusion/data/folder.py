"""The source `folder`: any tree of picture files, with captions beside them.

A caption comes from, in this order: `NAME.txt` beside the picture, the folder's `metadata.jsonl` or
`metadata.csv` (columns `file_name` and `text` or `caption`, as Hugging Face's imagefolder has them), or
the name of the class, which is the first folder below the root.
"""

from __future__ import annotations

import csv
import errno
import functools
import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from shift_diffusion.config import PROJECT_ROOT, ConfigError, Data
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

_METADATA = ("metadata.jsonl", "metadata.csv")


class Folder:
    """Items are ordered by their path relative to the root, in code points, whatever the file system says."""

    name = "folder"
    reads_files = True

    def __init__(self, data: Data):
        self.root = Path(data.path or "").expanduser()
        if not self.root.is_absolute():
            self.root = PROJECT_ROOT / self.root
        self.num_images = data.num_images
        self.empty_class = data.empty_class
        self.notes: dict[str, Any] = {}
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
        classes = {name: number for number, name in enumerate(sorted(self._classes))}
        captions = self._metadata(paths)
        for relative in paths:
            label = relative.split("/")[0] if "/" in relative else None
            details = {} if label is None else {"class": label, "class_number": classes[label]}
            readable = relative.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            caption = self._caption(relative, label, captions)
            yield Item(id=readable, caption=caption, key=relative, details=details)

    def load(self, item: Item) -> bytes:
        path = self.root / item.key
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            raise OSError(errno.EINVAL, "not a regular file")
        if path.stat().st_size > MAX_BYTES:
            raise OSError(errno.EFBIG, f"larger than {MAX_BYTES >> 20} MB")
        return path.read_bytes()

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
        """Relative paths of picture files, sorted; fills `notes` and the classes."""
        found, ignored, folders = [], Counter(), {}
        for folder, subfolders, files in os.walk(self.root):  # doesn't follow links to folders: no endless loops
            ignored["hidden"] += sum(name.startswith(".") for name in [*subfolders, *files])
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            ignored["link_to_folder"] += sum(os.path.islink(os.path.join(folder, name)) for name in subfolders)
            relative = Path(folder).relative_to(self.root).as_posix()
            prefix = "" if relative == "." else f"{relative}/"
            pictures = [name for name in files if not name.startswith(".") and Path(name).suffix.lower() in SUFFIXES]
            found += [prefix + name for name in pictures]
            ignored["other"] += sum(self._is_other(name) for name in files)
            for name in subfolders if not prefix else ():
                if not os.path.islink(os.path.join(folder, name)):
                    folders[name] = 0
            if prefix:
                folders[relative.split("/")[0]] += len(pictures)
        self._classes = list(folders)
        self._note(ignored, sorted(name for name, count in folders.items() if not count))
        return sorted(found)

    @staticmethod
    def _is_other(name: str) -> bool:
        lower = name.lower()
        known = lower in _METADATA or lower in _SYSTEM_FILES or Path(lower).suffix in SUFFIXES | {".txt"}
        return not known and not name.startswith(".")

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

    def _metadata(self, paths: list[str]) -> dict[str, str]:
        """relative path -> caption, from every metadata file; a deeper file has the last word."""
        folders = {""} | {path[:end] for path in paths for end in range(len(path)) if path[end] == "/"}
        captions: dict[str, str] = {}
        for folder in sorted(folders, key=lambda name: (name.count("/") + bool(name), name)):
            for name in _METADATA:
                path = self.root / folder / name
                if path.is_file():
                    prefix = f"{folder}/" if folder else ""
                    captions.update({prefix + file: text for file, text in _read_metadata(path).items()})
                    break
        absent = len(captions.keys() - set(paths))
        if absent:
            self.notes["captions_without_picture"] = absent
        return captions

    def _caption(self, relative: str, label: str | None, captions: dict[str, str]) -> str:
        beside = (self.root / relative).with_suffix(".txt")
        if beside.is_file():
            return " ".join(beside.read_text(encoding="utf-8", errors="replace").split())
        said = captions.get(relative)
        if said is not None:
            return " ".join(said.split())
        return "" if label is None else " ".join(label.replace("_", " ").replace("-", " ").split())


def _read_metadata(path: Path) -> dict[str, str]:
    """Reads `file_name` and `text` (or `caption`) of every row.

    Raises:
        ConfigError: naming file and line, for rows that can't be read.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.DictReader(text.splitlines())) if path.suffix == ".csv" else _json_lines(path, text)
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError([f"{path}: {error}"]) from error
    captions = {}
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not isinstance(row.get("file_name"), str):
            raise ConfigError([f"{path}: row {number} has no file_name"])
        captions[row["file_name"]] = str(row.get("text") or row.get("caption") or "")
    return captions


def _json_lines(path: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise ConfigError([f"{path}: line {number}: {error}"]) from error
    return rows
