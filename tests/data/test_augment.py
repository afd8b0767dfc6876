"""Augmentation: a function of the sample's number alone, right in what it does, off when it's off."""

import colorsys

import numpy as np
import pytest
import torch

from shift_diffusion.config import Augment
from shift_diffusion.data.augment import augment, uniforms


def section(**values) -> Augment:
    return Augment(**{"flip": False, "hsv": 0.0, "shift": 0.0, **values})


def pictures(count=12, side=16) -> torch.Tensor:
    images = np.random.default_rng(0).integers(0, 256, (count, side, side, 3), dtype=np.uint8)
    return torch.from_numpy(images).permute(0, 3, 1, 2)


ALL = {"flip": True, "hsv": 0.2, "shift": 0.2}


def test_off_is_the_same_tensor():
    images = pictures()
    assert augment(images, section(), 0, 1, np.arange(12)) is images


def test_a_sample_does_not_depend_on_its_batch():
    images = pictures()
    whole = augment(images, section(**ALL), 3, 2, np.arange(100, 112))
    assert whole.is_contiguous(memory_format=torch.channels_last)
    parts = [augment(images[i : i + 1], section(**ALL), 3, 2, [100 + i]) for i in range(12)]
    assert (torch.cat(parts) == whole).all()
    reverse = augment(images.flip(0), section(**ALL), 3, 2, np.arange(100, 112)[::-1].copy())
    assert (reverse.flip(0) == whole).all()


@pytest.mark.parametrize(("seed", "stage", "first"), [(4, 2, 100), (3, 1, 100), (3, 2, 101)])
def test_seed_stage_and_number_each_matter(seed, stage, first):
    images = pictures(1).expand(12, -1, -1, -1)
    base = augment(images, section(**ALL), 3, 2, np.arange(100, 112))
    assert (augment(images, section(**ALL), seed, stage, np.arange(first, first + 12)) != base).any()


def test_uniform_values_are_uniform_and_unrelated():
    values = uniforms(5, 2, np.arange(20_000), 4).numpy()
    assert (values >= 0).all()
    assert (values < 1).all()
    for column in values.T:
        counts = np.histogram(column, 16, (0, 1))[0]
        assert ((counts - 1250) ** 2 / 1250).sum() < 40  # chi-square of 15 degrees: 37.7 once in a thousand
    others = [uniforms(5, 3, np.arange(20_000), 1), uniforms(6, 2, np.arange(20_000), 1)]
    rows = [*values.T, np.roll(values[:, 0], 1), *(other[:, 0].numpy() for other in others)]
    correlations = np.corrcoef(rows) - np.eye(len(rows))
    assert np.abs(correlations).max() < 0.03


def test_flip_mirrors_about_half():
    images = pictures(400, 4)
    flipped = augment(images, section(flip=True), 0, 1, np.arange(400))
    kinds = [
        (bool((new == old).all()), bool((new == old.flip(-1)).all())) for new, old in zip(flipped, images, strict=True)
    ]
    assert all(same or mirrored for same, mirrored in kinds)
    assert 160 < sum(same for same, _ in kinds) < 240


def test_shift_moves_within_reach_and_repeats_the_border():
    image = torch.zeros(200, 3, 16, 16, dtype=torch.uint8)
    image[:, :, 8, 8] = 255
    moved = augment(image, section(shift=0.25), 0, 1, np.arange(200))
    spots = moved[:, 0].flatten(1).float().argmax(1)
    x, y = spots % 16 - 8, spots // 16 - 8
    assert (x.abs() <= 4).all()
    assert (y.abs() <= 4).all()
    assert len(set(x.tolist())) == 9
    assert len(set(y.tolist())) == 9
    plain = torch.full((5, 3, 16, 16), 77, dtype=torch.uint8)
    assert (augment(plain, section(shift=0.5), 0, 1, np.arange(5)) == 77).all()


def test_jitter_keeps_gray_gray_and_turns_hue():
    gray = torch.full((50, 3, 8, 8), 100, dtype=torch.uint8)
    changed = augment(gray, section(hsv=0.3), 0, 1, np.arange(50))
    assert (changed.float().std(dim=1) <= 1).all()
    assert changed.min() >= 70
    assert changed.max() <= 130
    red = torch.zeros(200, 3, 2, 2, dtype=torch.uint8)
    red[:, 0] = 120
    red[:, 1:] = 60
    turned = augment(red, section(hsv=0.1), 0, 1, np.arange(200))[:, :, 0, 0].numpy() / 255
    hues = np.array([(colorsys.rgb_to_hsv(*color)[0] + 0.5) % 1 - 0.5 for color in turned])
    assert 0.05 < np.abs(hues).max() < 0.15
    assert abs(hues.mean()) < 0.02
