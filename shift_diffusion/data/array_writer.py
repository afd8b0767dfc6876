"""A .npy file of pictures whose number isn't known beforehand: pixels stream in, the header comes last."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

_HEADER = 128  # bytes, enough for any count


class ArrayWriter:
    """Appends (R, R, 3) uint8 pictures to an array (N, R, R, 3)."""

    def __init__(self, path: Path, side: int):
        self.side, self.count = side, 0
        self.file = open(path, "wb")  # noqa: SIM115 - closed in close()
        self.file.write(bytes(_HEADER))

    def add(self, picture: np.ndarray) -> None:
        if picture.shape != (self.side, self.side, 3) or picture.dtype != np.uint8:
            raise ValueError(f"expected ({self.side}, {self.side}, 3) uint8, got {picture.shape} {picture.dtype}")
        self.file.write(picture.tobytes())
        self.count += 1

    def close(self) -> None:
        """Writes the header: format 1.0 of numpy.lib.format, padded to a fixed size."""
        shape = (self.count, self.side, self.side, 3)
        text = str({"descr": "|u1", "fortran_order": False, "shape": shape}).encode("latin1")
        body = text.ljust(_HEADER - 11) + b"\n"
        self.file.seek(0)
        self.file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body)
        self.file.close()
