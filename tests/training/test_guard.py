"""The guard: what is applied, skipped, rolled back, and when a run ends."""

import json
import math

import pytest

from shift_diffusion.training.guard import LEAD, WARM_UP, Guard, Verdict


def healthy(steps: int = WARM_UP, **kwargs) -> Guard:
    guard = Guard(max_bad_steps=3, spike_factor=5.0, **kwargs)
    for draw in range(steps):
        assert guard.judge(draw, 1.0, 0.5) is Verdict.APPLY
    return guard


@pytest.mark.parametrize(("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (1.0, math.nan), (1.0, math.inf)])
def test_a_step_that_is_not_finite_is_skipped(loss, norm):
    guard = healthy()
    before = guard.mean_loss
    assert guard.judge(50, loss, norm) is Verdict.SKIP
    assert (guard.skipped_steps, guard.bad_in_a_row, guard.mean_loss) == (1, 1, before)
    assert guard.judge(51, 1.0, 0.5) is Verdict.APPLY
    assert (guard.skipped_steps, guard.bad_in_a_row) == (1, 0)


def test_only_bad_steps_in_a_row_end_the_run():
    guard = healthy()
    for draw in range(10):
        guard.judge(draw, math.nan if draw % 2 else 1.0, 1.0)
    assert guard.skipped_steps == 5
    assert not guard.must_stop
    for draw in range(3):
        guard.judge(draw, math.nan, 1.0)
    assert guard.must_stop


def test_a_spike_rolls_back_once_and_is_a_bad_step_after_that():
    guard = healthy()
    assert guard.judge(60, 5.1, 1.0) is Verdict.ROLL_BACK
    guard.went_back(60)
    assert [guard.is_left_out(draw) for draw in (60 - LEAD - 1, 60 - LEAD, 60, 61)] == [False, True, True, False]
    assert guard.judge(80, 6.0, 1.0) is Verdict.SKIP
    assert guard.rollbacks == 1


def test_no_spike_before_the_mean_means_something():
    assert healthy(WARM_UP - 1).judge(0, 100.0, 1.0) is Verdict.APPLY


def test_mean_follows_the_loss():
    guard = healthy()
    for draw in range(400):
        guard.judge(draw, 0.5, 1.0)
    assert guard.mean_loss == pytest.approx(0.5, abs=1e-3)


def test_diagnosis_names_step_noise_levels_and_files():
    guard = healthy()
    for draw in range(3):
        guard.judge(draw, math.nan, math.nan)
    message = guard.diagnosis(123, math.nan, math.nan, [0.25, 0.75], ["a.png", "b.png"])
    for part in ("3 bad steps in a row", "step 123", "0.250, 0.750", "a.png, b.png", "lr", "warmup"):
        assert part in message


def test_state_survives_json():
    guard = healthy()
    guard.judge(1, math.nan, 1.0)
    guard.went_back(70)
    other = Guard(max_bad_steps=3, spike_factor=5.0)
    other.load(json.loads(json.dumps(guard.state(), allow_nan=False)))
    assert other == guard
