"""Color and variety of a set of pictures in a few numbers, to compare generated with real ones."""

from __future__ import annotations

from torch import Tensor


def appearance(images: Tensor) -> dict[str, float]:
    """Means over a set of pictures.

    Args:
        images: uint8 (N, 3, H, W), N >= 1.

    Returns:
        brightness: mean value in [0, 1].
        contrast: mean over the pictures of the standard deviation of their pixels, in [0, 1].
        saturation: mean of the largest minus the smallest color of a pixel, in [0, 1] (chroma of HSV).
        hue_spread: 0 when all color is of one hue, towards 1 when hues are spread evenly (1 - |mean hue vector|,
            weighted by chroma); 0 for gray pictures.
        variety: mean over the pixels of the standard deviation between pictures, in [0, 1]; 0 for copies of one.
    """
    x = images.float() / 255
    chroma = x.amax(1) - x.amin(1)
    # hue as a direction in the color plane (Hanbury 2003): no branches, no undefined angle of gray
    across = x[:, 0] - (x[:, 1] + x[:, 2]) / 2
    up = (x[:, 1] - x[:, 2]) * 3**0.5 / 2
    length = (across.square() + up.square()).sqrt().sum()
    mean_vector = (across.sum().square() + up.sum().square()).sqrt()
    return {
        "brightness": float(x.mean()),
        "contrast": float(x.mean(1).flatten(1).std(1, correction=0).mean()),
        "saturation": float(chroma.mean()),
        "hue_spread": float(1 - mean_vector / length) if length > 0 else 0.0,
        "variety": float(x.std(0, correction=0).mean()),
    }
