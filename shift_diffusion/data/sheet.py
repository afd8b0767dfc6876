"""A picture that shows what training will see: some prepared images with their captions."""

from __future__ import annotations

import numpy as np
from PIL import Image

from shift_diffusion.data.store import PreparedData
from shift_diffusion.pictures import grid


def contact_sheet(prepared: PreparedData, count: int = 32, columns: int = 8) -> Image.Image:
    """`count` pictures, evenly spaced over the data, at the largest resolution, two times enlarged."""
    rows = np.unique(np.linspace(0, len(prepared) - 1, min(count, len(prepared))).round().astype(np.int64))
    side = max(prepared.resolutions)
    labels = [prepared.captions[row] for row in rows]
    return grid(prepared.batch(rows, side), columns=columns, labels=labels, scale=max(1, round(128 / side)))
