"""Embeddings of unique captions on disk, without padding, in a safetensors file that is read by memory map.

tokens   (sum of lengths + 1, D) float16, the last row zero: what padding reads
offsets  (U + 1,) int64     caption u has tokens[offsets[u]:offsets[u + 1]]
pooled   (U, D) float32
index    (N,) int64         caption of each picture
"""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import torch

from shift_diffusion.models.conditioning import TextCondition

_DTYPES = {"F16": np.float16, "F32": np.float32, "I64": np.int64}


class TextStore:
    """Gathers padded conditions for a batch."""

    def __init__(self, path: Path):
        arrays = map_safetensors(path)
        self.tokens = torch.from_numpy(arrays["tokens"])  # torch converts float16 far faster than NumPy
        self.offsets, self.index = np.asarray(arrays["offsets"]), np.asarray(arrays["index"])
        self.pooled = arrays["pooled"]
        self.dim = self.tokens.shape[1]
        self.max_length = int(np.diff(self.offsets).max(initial=1))

    def rows(self, indices: np.ndarray) -> TextCondition:
        """tokens (B, L, D) float32, mask (B, L) bool, pooled (B, D) float32; L is the longest caption of the store."""
        unique = self.index[indices]
        starts, lengths = self.offsets[unique], np.diff(self.offsets)[unique]
        places = np.arange(self.max_length)
        mask = places < lengths[:, None]
        rows = np.where(mask, starts[:, None] + places, len(self.tokens) - 1)
        tokens = self.tokens[torch.from_numpy(rows)].float()
        return TextCondition(tokens, torch.from_numpy(mask), torch.from_numpy(self.pooled[unique]))


def map_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file as memory maps; copy-on-write, as torch dislikes read-only ones."""
    with open(path, "rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
    return {
        name: np.memmap(path, _DTYPES[e["dtype"]], "c", 8 + size + e["data_offsets"][0], tuple(e["shape"]))
        for name, e in header.items()
        if name != "__metadata__"
    }


class TextWriter:
    """Streams captions' embeddings to disk, so that memory doesn't grow with their number."""

    def __init__(self, folder: Path, dim: int):
        self.folder, self.dim = folder, dim
        self.lengths: list[int] = []
        self.tokens = open(folder / "tokens.tmp", "wb")  # noqa: SIM115 - closed in finish()
        self.pooled = open(folder / "pooled.tmp", "wb")  # noqa: SIM115

    def add(self, tokens: np.ndarray, pooled: np.ndarray) -> None:
        """One caption: (length, D) float16 and (D,) float32."""
        self.tokens.write(tokens.tobytes())
        self.pooled.write(pooled.tobytes())
        self.lengths.append(len(tokens))

    def finish(self, index: Iterable[int]) -> None:
        """Writes text.safetensors from what was added."""
        self.tokens.write(np.zeros(self.dim, np.float16).tobytes())
        self.tokens.close()
        self.pooled.close()
        offsets = np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)
        rows = np.fromiter(index, np.int64)
        shapes = {
            "offsets": ("I64", offsets.shape),
            "index": ("I64", rows.shape),
            "pooled": ("F32", (len(self.lengths), self.dim)),
            "tokens": ("F16", (int(offsets[-1]) + 1, self.dim)),
        }
        with open(self.folder / "text.safetensors", "wb") as out:
            out.write(_header(shapes))
            out.write(offsets.tobytes())
            out.write(rows.tobytes())
            for part in ("pooled.tmp", "tokens.tmp"):
                with open(self.folder / part, "rb") as file:
                    shutil.copyfileobj(file, out)
                (self.folder / part).unlink()


def _header(shapes: dict[str, tuple[str, tuple[int, ...]]]) -> bytes:
    header, start = {}, 0
    for name, (dtype, shape) in shapes.items():
        end = start + int(np.prod(shape)) * np.dtype(_DTYPES[dtype]).itemsize
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # arrays start at multiples of 8 bytes
    return struct.pack("<Q", len(text)) + text
