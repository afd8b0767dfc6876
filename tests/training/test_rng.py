"""Randomness by number: no history, no dependence on how a group is cut, right distributions."""

import numpy as np
import pytest
import torch

from shift_diffusion.training import rng


def test_values_depend_on_the_numbers_alone():
    whole = rng.normal(1, 2, 3, range(8), (4, 4, 3), "noise")
    rng.normal(9, 9, 9, range(100), (5,), "noise")
    halves = [rng.normal(1, 2, 3, part, (4, 4, 3), "noise") for part in (range(4), range(4, 8))]
    assert torch.equal(whole, torch.cat(halves))


@pytest.mark.parametrize(
    "other",
    [(1, 2, 3, 4, "time"), (1, 2, 3, 5, "noise"), (1, 2, 4, 4, "noise"), (1, 3, 3, 4, "noise"), (2, 2, 3, 4, "noise")],
)
def test_every_number_counts(other):
    *numbers, sample, purpose = other
    base = rng.normal(1, 2, 3, [4], (16,), "noise")
    assert not torch.equal(base, rng.normal(*numbers, [sample], (16,), purpose))


def test_normal_has_mean_zero_and_variance_one():
    values = rng.normal(0, 1, 0, range(64), (1000,), "noise")
    assert values.dtype == torch.float32
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02
    correlation = np.corrcoef(values.numpy())
    assert np.abs(correlation - np.eye(64)).max() < 0.2


def test_stratified_covers_the_interval_and_is_cut_like_the_group():
    values = rng.stratified(0, 1, 5, range(32), 32, "time")
    gaps = values.sort().values.diff()
    assert gaps.max() < 2 / 32
    assert torch.equal(values[8:16], rng.stratified(0, 1, 5, range(8, 16), 32, "time"))
    assert values.min() > 0
    assert values.max() < 1


def test_stratified_is_uniform_over_draws():
    values = torch.cat([rng.stratified(0, 1, draw, range(3), 3, "time") for draw in range(600)])
    histogram = torch.histc(values.float(), 10, 0, 1) / len(values)
    assert (histogram - 0.1).abs().max() < 0.03


def test_order_shows_every_image_once_an_epoch_in_a_new_order():
    first, second = rng.order(0, 1, range(10), 10), rng.order(0, 1, range(10, 20), 10)
    assert sorted(first) == sorted(second) == list(range(10))
    assert list(first) != list(second)
    assert list(rng.order(0, 1, range(7, 13), 10)) == [*first[7:], *second[:3]]


def test_torch_seed_fits_torch():
    torch.Generator().manual_seed(rng.torch_seed(2**31, 3, 10**6, "weights"))
