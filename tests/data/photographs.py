"""Sixty real photographs of mixed size, mode and format, cut from those that scikit-image and scikit-learn carry."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import skimage
import sklearn
from PIL import Image

NAMES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "camera.png", "moon.png", "motorcycle_left.png")
KINDS = (
    ("png", "RGB"),
    ("jpg", "RGB"),
    ("jpg", "L"),
    ("jpg", "CMYK"),
    ("webp", "RGB"),
    ("png", "P"),
    ("png", "RGBA"),
    ("tif", "L"),
)


def originals() -> list[tuple[str, Image.Image]]:
    found = [Path(skimage.__file__).parent / "data" / name for name in NAMES]
    found += [Path(sklearn.__file__).parent / "datasets" / "images" / name for name in ("china.jpg", "flower.jpg")]
    return [(path.stem, Image.open(path).convert("RGB")) for path in found]


def write_photographs(folder: Path, count: int = 60, seed: int = 0) -> None:
    """Random cuts of 60 pixels and more, in a sub-folder per photograph; some in portrait, some with EXIF rotation."""
    rng, photographs = np.random.default_rng(seed), originals()
    for number in range(count):
        name, photograph = photographs[number % len(photographs)]
        width, height = (int(rng.integers(60, side // 2)) for side in photograph.size)
        left, top = (
            int(rng.integers(0, side - cut)) for side, cut in zip(photograph.size, (width, height), strict=True)
        )
        suffix, mode = KINDS[number % len(KINDS)]
        exif = Image.Exif()
        if suffix == "jpg" and number % 3 == 0:
            exif[274] = 6
        cut = photograph.crop((left, top, left + width, top + height)).convert(mode)
        path = folder / name / f"{seed}-{number:03}.{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        cut.save(path, **({"exif": exif} if suffix in ("jpg", "webp") else {}))
