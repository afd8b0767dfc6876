"""Two thousand damaged files: nothing crashes, hangs or gives anything but 8-bit RGB, and each refusal has a reason."""

import time

import numpy as np
import pytest

from shift_diffusion.data.decode import Rejected, Target, decode
from tests.data import files

TARGET = Target(resolutions=(8, 16), background="#ffffff", min_size=8)


def originals() -> list[bytes]:
    picture = files.noise(0, (64, 48))
    alpha = picture.convert("RGBA")
    alpha.putalpha(128)
    sixteen = np.asarray(picture.convert("L")).astype(np.uint16) * 257
    return [
        files.encoded(picture, "PNG"),
        files.encoded(alpha, "PNG"),
        files.encoded(picture.quantize(16), "PNG", transparency=3),
        files.encoded(files.Image.fromarray(sixteen), "PNG"),
        files.encoded(picture, "JPEG", quality=90),
        files.encoded(picture, "JPEG", quality=90, progressive=True),
        files.encoded(picture.convert("CMYK"), "JPEG"),
        files.with_orientation(picture, 6),
        files.encoded(picture, "GIF", save_all=True, append_images=[picture.rotate(90)]),
        files.encoded(picture, "WEBP"),
        files.encoded(alpha, "WEBP", lossless=True),
        files.encoded(picture, "TIFF", compression="tiff_lzw"),
        files.encoded(picture, "TIFF", compression="jpeg"),
        files.encoded(files.Image.fromarray(sixteen), "TIFF"),
        files.encoded(picture, "BMP"),
        files.encoded(picture, "PPM"),
        files.encoded(picture, "ICO"),
        files.encoded(picture, "TGA"),
    ]


def mutated(data: bytes, rng: np.random.Generator) -> bytes:
    """One kind of damage: changed bytes, a cut, a hole, a doubled part, zeros, or another file's tail."""
    array, kind = bytearray(data), rng.integers(6)
    start, length = int(rng.integers(len(array))), int(rng.integers(1, 64))
    if kind == 0:
        for place in rng.integers(0, len(array), rng.integers(1, 20)):
            array[place] = rng.integers(256)
    elif kind == 1:
        del array[start:]
    elif kind == 2:
        del array[start : start + length]
    elif kind == 3:
        array[start:start] = array[start : start + length]
    elif kind == 4:
        array[start : start + length] = bytes(length)
    else:
        head = rng.integers(0, min(64, len(array)), 8)  # sizes and types stand in the first bytes
        for place in head:
            array[place] ^= 1 << int(rng.integers(8))
    return bytes(array)


@pytest.mark.parametrize("part", range(10))
def test_damaged_files(part):
    sources, reasons, used = originals(), [], 0
    for number in range(200 * part, 200 * part + 200):
        data = mutated(sources[number % len(sources)], np.random.default_rng(number))
        start = time.process_time()
        try:
            picture = decode(data, TARGET)
        except Rejected as error:
            reasons.append(str(error))
        else:
            used += 1
            for side, pixels in picture.pixels.items():
                assert pixels.shape == (side, side, 3)
                assert pixels.dtype == np.uint8
        assert time.process_time() - start < 5
    assert used + len(reasons) == 200
    assert len(reasons) > 20
    assert all(reason.strip() for reason in reasons)
