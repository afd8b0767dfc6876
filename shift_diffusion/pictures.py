"""Pictures for people: contact sheets of images and PNG files that say where they come from."""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from PIL.PngImagePlugin import PngInfo

from shift_diffusion.files import write_bytes_atomic

_MIN_CELL = 64  # pixels: smaller images are enlarged by whole pixels, so that one can see them


def grid(
    images, columns: int | None = None, labels: Sequence[str] | None = None, padding: int = 2, scale: int | None = None
) -> Image.Image:
    """Arranges images row by row on white.

    Args:
        images: uint8 tensor or array (N, 3, H, W), N >= 1.
        columns: images per row; None makes the sheet about square.
        labels: N texts under the images, wrapped to the image's width.
        scale: enlargement by whole pixels; None brings small images to at least 64 pixels.
    """
    array = np.asarray(images)
    if array.ndim != 4 or array.shape[1] != 3 or array.dtype != np.uint8 or not len(array):
        raise ValueError(f"expected uint8 images (N, 3, H, W) with N >= 1, got {array.dtype} {array.shape}")
    scale = scale or max(1, math.ceil(_MIN_CELL / array.shape[2]))
    cells = [Image.fromarray(np.repeat(np.repeat(a.transpose(1, 2, 0), scale, 0), scale, 1)) for a in array]
    width, height = cells[0].size
    texts = [_wrap(label, width) for label in labels] if labels else []
    text_height = _text_size("\n".join(max(texts, key=lambda t: t.count("\n"))))[1] + 4 if texts else 0
    columns = columns or math.ceil(math.sqrt(len(cells)))
    rows = math.ceil(len(cells) / columns)
    step_x, step_y = width + padding, height + padding + text_height
    sheet = Image.new("RGB", (columns * step_x - padding, rows * step_y - padding), "white")
    draw = ImageDraw.Draw(sheet)
    for index, cell in enumerate(cells):
        x, y = index % columns * step_x, index // columns * step_y
        sheet.paste(cell, (x, y))
        if texts:
            draw.text((x + 1, y + height + 1), "\n".join(texts[index]), fill="black", font=_font())
    return sheet


def _font():
    return ImageFont.load_default(size=10)


def _text_size(text: str) -> tuple[int, int]:
    box = ImageDraw.Draw(Image.new("L", (1, 1))).textbbox((0, 0), text, font=_font())
    return math.ceil(box[2]), math.ceil(box[3])


def _wrap(text: str, width: int) -> list[str]:
    characters = max(8, int(width / max(_text_size("n" * 20)[0] / 20, 1)))
    return textwrap.wrap(text, characters)[:5] or [""]


def png_bytes(image: Image.Image, metadata: Mapping[str, object] | None = None) -> bytes:
    """PNG encoding with text chunks (seed, prompt, model version ...): the picture knows how it was made."""
    info = PngInfo()
    for key, value in (metadata or {}).items():
        info.add_itxt(str(key), str(value))
    buffer = io.BytesIO()
    image.save(buffer, format="PNG", pnginfo=info)
    return buffer.getvalue()


def save_png(image: Image.Image, path: str | Path, metadata: Mapping[str, object] | None = None) -> None:
    write_bytes_atomic(path, png_bytes(image, metadata))


def to_pil(image) -> Image.Image:
    """One uint8 image (3, H, W), tensor or array, as a PIL image."""
    return Image.fromarray(np.ascontiguousarray(np.asarray(image).transpose(1, 2, 0)))
