"""Captions of a folder of pictures: text files beside them, metadata files, names of class folders."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from shift_diffusion.config import ConfigError

METADATA = ("metadata.jsonl", "metadata.csv")


class Captions:
    """The caption of each picture of a tree; paths are relative to its root, with forward slashes."""

    def __init__(self, root: Path, pictures: Collection[str], text_files: Collection[str]):
        """`text_files` are the .txt files of the tree; metadata files are looked for in every folder of a picture.

        Raises:
            ConfigError: for a metadata file that can't be read.
        """
        self.root, self.text_files = root, text_files
        self.told = _metadata(root, pictures)
        self.num_without_picture = len(self.told.keys() - set(pictures)) if self.told else 0

    def of(self, picture: str, label: str | None) -> str:
        """The text beside the picture, else what metadata says, else the words of its class; "" without any."""
        beside = os.path.splitext(picture)[0] + ".txt"
        if beside in self.text_files:
            return _one_line((self.root / beside).read_text(encoding="utf-8", errors="replace"))
        if picture in self.told:
            return self.told[picture]
        return "" if label is None else _one_line(label.replace("_", " ").replace("-", " "))


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _metadata(root: Path, pictures: Iterable[str]) -> dict[str, str]:
    """picture -> caption, from all metadata files; of two that name a picture the deeper one counts."""
    folders = {""}
    for folder in {picture.rpartition("/")[0] for picture in pictures}:
        parts = folder.split("/")
        folders.update("/".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    captions: dict[str, str] = {}
    for folder in sorted(folders, key=lambda name: (name.count("/") + bool(name), name)):
        path = next((root / folder / name for name in METADATA if (root / folder / name).is_file()), None)
        if path is not None:
            prefix = f"{folder}/" if folder else ""
            captions.update({prefix + name: text for name, text in _read(path).items()})
    return captions


def _read(path: Path) -> dict[str, str]:
    """`file_name` and `text` (or `caption`) of every row."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        rows = list(csv.DictReader(io.StringIO(text, newline=""))) if path.suffix == ".csv" else _json_lines(path, text)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigError([f"{path}: {error}"]) from error
    captions = {}
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not isinstance(row.get("file_name"), str):
            raise ConfigError([f"{path}: row {number} has no file_name"])
        captions[row["file_name"]] = _one_line(str(row.get("text") or row.get("caption") or ""))
    return captions


def _json_lines(path: Path, text: str) -> list[Any]:
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            try:
                rows.append(json.loads(line))
            except json.JSONDecodeError as error:
                raise ConfigError([f"{path}: line {number}: {error}"]) from error
    return rows
