"""Real picture files of every kind, written with Pillow into a folder that a test owns."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path

import numpy as np
from PIL import Image

from shift_diffusion.config import Data, Text

RED, BLUE = (220, 30, 30), (30, 30, 220)


def data_section(path: Path | str | None = None, **changes) -> Data:
    """A `data` section for a small folder source, one worker."""
    values = {
        "source": "folder" if path is not None else "digits",
        "path": str(path or "data/raw"),
        "num_images": None,
        "validation_fraction": 0.25,
        "background": "#ffffff",
        "min_size": 8,
        "max_rejected_fraction": 1.0,
        "empty_class": "warn",
        "workers": 1,
    }
    return Data(**{**values, **changes})


NO_TEXT = Text(encoder="none", name=None, max_tokens=16)


def halves(size=(64, 64), top=RED, bottom=BLUE, mode="RGB") -> Image.Image:
    """Upper half one color, lower half another."""
    image = Image.new("RGB", size, top)
    image.paste(bottom, (0, size[1] // 2, size[0], size[1]))
    return image.convert(mode)


def noise(seed: int, size=(48, 40)) -> Image.Image:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def with_orientation(image: Image.Image, tag: int) -> bytes:
    """A JPEG whose stored pixels need EXIF orientation `tag` to stand upright."""
    undo = {
        1: None,
        2: Image.Transpose.FLIP_LEFT_RIGHT,
        3: Image.Transpose.ROTATE_180,
        4: Image.Transpose.FLIP_TOP_BOTTOM,
        5: Image.Transpose.TRANSPOSE,
        6: Image.Transpose.ROTATE_90,
        7: Image.Transpose.TRANSVERSE,
        8: Image.Transpose.ROTATE_270,
    }[tag]
    exif = Image.Exif()
    exif[274] = tag
    return encoded(image.transpose(undo) if undo is not None else image, "JPEG", quality=95, exif=exif)


def plain_cmyk_jpeg(image: Image.Image) -> bytes:
    """A four-channel JPEG without Adobe's marker, stored as it is: 255 = full ink."""
    ink = Image.fromarray(255 - np.asarray(image.convert("CMYK")), "CMYK")
    data = encoded(ink, "JPEG", quality=95)  # Pillow inverts on writing, as Adobe does
    start = data.index(b"\xff\xee")
    (length,) = struct.unpack(">H", data[start + 2 : start + 4])
    return data[:start] + data[start + 2 + length :]


def png_with_bad_checksum(image: Image.Image) -> bytes:
    """The pixels decode, but the checksum of the pixel data is wrong."""
    data = bytearray(encoded(image, "PNG"))
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    end = start + 4 + length
    assert struct.unpack(">I", data[end : end + 4])[0] == zlib.crc32(data[start:end])
    data[end] ^= 0xFF
    return bytes(data)


def png_claiming(width: int, height: int) -> bytes:
    """A small file that says it is a huge picture."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    rows = zlib.compress(bytes(1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
