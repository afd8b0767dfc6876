"""Any picture file to a square 8-bit RGB array per resolution, or a named refusal.

No torch here: worker processes import this module and should start quickly.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageChops, ImageFile

VERSION = 1
"""Raised when the same file gives other pixels: cached pictures of older versions are not used."""

FORMATS = ("JPEG", "MPO", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF", "ICO", "TGA")
"""What is opened at all. Left out on purpose: formats that start other programs (EPS) or aren't pictures."""

MAX_PIXELS = 100_000_000
"""Larger pictures are refused before they are decoded: 100 megapixels are 300 MB of RGB."""


class Rejected(Exception):
    """A picture that can't be used. The message is the reason, in words for the report."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """What pictures are made into."""

    resolutions: tuple[int, ...]  # sides in pixels, any order
    background: str  # "#rrggbb", under transparent pixels
    min_size: int  # pixels; pictures with a shorter side below are refused


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A prepared picture and what it came from."""

    pixels: dict[int, np.ndarray]  # resolution -> (R, R, 3) uint8
    width: int  # of the source, upright
    height: int
    mode: str  # Pillow's mode of the source: "RGB", "CMYK", "I;16" ...
    format: str  # "JPEG" ..., "" for drawn pictures
    animated: bool


def decode(data: bytes, target: Target) -> Picture:
    """Decodes a whole file and prepares it.

    Raises:
        Rejected: with the reason, for everything that isn't a complete, reasonable picture.
    """
    if not data:
        raise Rejected("empty file")
    try:
        with warnings.catch_warnings():
            # Pillow warns of odd metadata and large files; what matters is decided here and reported
            warnings.simplefilter("ignore")
            return _decode(data, target)
    except Rejected:
        raise
    except MemoryError as error:
        raise Rejected("not enough memory to decode") from error
    except Exception as error:  # decoders raise almost anything on damaged files
        raise Rejected(_reason(error)) from error


def _reason(error: Exception) -> str:
    if isinstance(error, Image.UnidentifiedImageError):
        return "not a picture in a known format"
    if isinstance(error, Image.DecompressionBombError):
        return f"more than {MAX_PIXELS:,} pixels"
    text = " ".join(str(error).split())
    if "truncated" in text:
        return "truncated file"
    return f"damaged file ({type(error).__name__}{': ' + text[:80] if text else ''})"


def _decode(data: bytes, target: Target) -> Picture:
    _register_heif()
    ImageFile.LOAD_TRUNCATED_IMAGES = False  # a fault to report, whatever another library has set
    image = Image.open(io.BytesIO(data), formats=_known_formats())
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise Rejected(f"more than {MAX_PIXELS:,} pixels ({width}x{height})")
    if min(width, height) < target.min_size:
        raise Rejected("smaller than data.min_size")
    if image.format == "PNG":
        # load() skips the checksums of the pixel data; verify() reads them, and closes the image
        image.verify()
        image = Image.open(io.BytesIO(data), formats=("PNG",))
    mode, name = image.mode, image.format or ""
    animated = getattr(image, "n_frames", 1) > 1 and name != "MPO"
    if name in ("JPEG", "MPO"):
        side = 2 * max(target.resolutions)
        image.draft(None, (max(side, side * width // height), max(side, side * height // width)))
    image.load()
    return _finish(image, target, mode=mode, name=name, animated=animated, size=(width, height))


def prepare(image: Image.Image, target: Target) -> Picture:
    """The same for an image that needs no decoding (drawn, or from a dataset library).

    Raises:
        Rejected: when it is too small.
    """
    if min(image.size) < target.min_size:
        raise Rejected("smaller than data.min_size")
    return _finish(image, target, mode=image.mode, name=image.format or "", animated=False, size=image.size)


def _finish(
    image: Image.Image, target: Target, *, mode: str, name: str, animated: bool, size: tuple[int, int]
) -> Picture:
    orientation = _orientation(image)
    rgb = to_rgb(image, target.background)
    upright = rgb.transpose(_TURNS[orientation]) if orientation > 1 else rgb
    width, height = reversed(size) if orientation >= 5 else size
    pixels = resize(upright, target.resolutions)
    return Picture(pixels=pixels, width=width, height=height, mode=mode, format=name, animated=animated)


def _known_formats() -> tuple[str, ...]:
    Image.init()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _register_heif() -> None:
    """HEIC pictures are read where the optional package pillow-heif is installed."""
    if "HEIF" in Image.OPEN:
        return
    try:
        import pillow_heif
    except ImportError:
        return
    pillow_heif.register_heif_opener()


_TURNS = {  # EXIF orientation -> what makes the picture upright
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def _orientation(image: Image.Image) -> int:
    """EXIF tag 274, 1 to 8; 1 where there is none or it can't be read."""
    try:
        value = image.getexif().get(274, 1)
    except Exception:  # damaged metadata doesn't make a bad picture
        return 1
    return value if value in _TURNS else 1


def to_rgb(image: Image.Image, background: str) -> Image.Image:
    """Any Pillow mode to 8-bit RGB; transparent areas show `background`."""
    if image.mode == "CMYK" and image.format == "JPEG" and "adobe" not in image.info:
        # Pillow inverts every four-channel JPEG, as Adobe's are stored; the others are stored plainly
        image = ImageChops.invert(image)
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_to_8_bits(np.asarray(image))).convert("RGB")
    if image.mode in ("La", "RGBa"):  # color already multiplied by alpha
        image = image.convert({"La": "LA", "RGBa": "RGBA"}[image.mode])
    if image.has_transparency_data:
        layer = image.convert("RGBA")
        canvas = Image.new("RGBA", layer.size, background)
        return Image.alpha_composite(canvas, layer).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_8_bits(values: np.ndarray) -> np.ndarray:
    """Grey values of 16, 32 bits or floats to uint8.

    Integers above 255 are taken as 16 bits, floats up to 1 as [0, 1] and else as [0, 255].
    """
    if values.dtype.kind == "f":
        if not np.isfinite(values).all():
            raise Rejected("pixel values that aren't finite")
        scale = 255.0 if values.max(initial=0.0) <= 1.0 else 1.0
        return np.clip(np.rint(values * scale), 0, 255).astype(np.uint8)
    if values.dtype.itemsize == 2 or values.max(initial=0) > 255:
        return np.clip(np.rint(values.astype(np.float64) / 257.0), 0, 255).astype(np.uint8)
    return np.clip(values, 0, 255).astype(np.uint8)


def resize(image: Image.Image, resolutions: Sequence[int]) -> dict[int, np.ndarray]:
    """The centered square of an RGB image at every resolution, by area averaging.

    The largest resolution is made from the image, each further one from the next larger where that is a
    multiple: the average over 2x2 pixels of a prepared picture *is* the prepared picture of half the side.
    Pictures smaller than a resolution are enlarged bilinearly.

    Returns:
        resolution -> (R, R, 3) uint8.
    """
    square, done = _central_square(image), {}
    for side in sorted(set(resolutions), reverse=True):
        larger = [done[other] for other in done if other % side == 0]
        done[side] = _scaled(larger[-1] if larger else square, side)
    return {side: np.asarray(picture) for side, picture in done.items()}


def _central_square(image: Image.Image) -> Image.Image:
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    return image if image.width == image.height else image.crop((left, top, left + side, top + side))


def _scaled(square: Image.Image, side: int) -> Image.Image:
    if square.width == side:
        return square
    if square.width % side == 0:
        return square.reduce(square.width // side)  # the same mean, exact and faster
    method = Image.Resampling.BOX if square.width > side else Image.Resampling.BILINEAR
    return square.resize((side, side), method)
