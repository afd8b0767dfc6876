"""Promotion compares like with like, and in doubt the champion stays."""

import pytest

from shift_diffusion.registry import Candidate, gate

LIKE = {"num_samples": "1024", "features": "efficientnet_lite0", "reference": "abc", "sampler": "dpmpp_2m"}


def candidate(version, value, metric="fid", **other):
    return Candidate(version, metric, value, {**LIKE, **other})


@pytest.mark.parametrize(
    ("challenger", "promote", "reason"),
    [
        (candidate(2, 90.0), True, "better"),
        (candidate(2, 110.0), False, "worse"),
        (candidate(2, 100.0), False, "equal"),
        (candidate(2, float("nan")), False, "no usable fid"),
        (candidate(2, float("inf")), False, "no usable fid"),
        (candidate(2, None), False, "no usable fid"),
        (candidate(2, 1.0, num_samples="64"), False, "num_samples 64, not 1024"),
        (candidate(2, 1.0, features="inception-v3-compat"), False, "features inception-v3-compat"),
        (candidate(2, 1.0, reference="def"), False, "reference def, not abc"),
        (candidate(2, 1.0, seeds="0,1"), False, "seeds 0,1, not unknown"),
        (candidate(2, 1.0, metric="kid"), False, "metric kid, not fid"),
        (candidate(1, 100.0), False, "the champion already"),
    ],
)
def test_challenger_against_champion_of_100(challenger, promote, reason):
    decision = gate(challenger, candidate(1, 100.0))
    assert decision.promote is promote
    assert reason in decision.reason
    assert (decision.version, decision.champion) == (challenger.version, 1)


def test_first_ever():
    decision = gate(candidate(1, 100.0), None)
    assert decision.promote
    assert decision.champion is None


def test_first_ever_without_a_number_is_no_champion():
    assert not gate(candidate(1, float("nan")), None).promote


def test_champion_without_a_number_is_beaten_by_any():
    assert gate(candidate(2, 100.0), candidate(1, float("nan"))).promote


@pytest.mark.parametrize(("value", "promote"), [(94.9, True), (95.1, False), (100.0, False)])
def test_smallest_improvement(value, promote):
    assert gate(candidate(2, value), candidate(1, 100.0), min_improvement=0.05).promote is promote
