"""The learning rate: warm-up, one peak, cosine, final drop (cases 7 and 11)."""

from dataclasses import dataclass

import pytest

from shift_diffusion.config import ConfigError
from shift_diffusion.training.lr import COSINE_FLOOR, FINAL_LR, final_phase_start, learning_rate


@dataclass
class Section:
    steps: int = 100
    warmup: int = 10
    lr: float = 1e-3
    final_drop: bool = False


def rates(section: Section) -> list[float]:
    return [learning_rate(step, section) for step in range(section.steps)]


@pytest.mark.parametrize("warmup", [0, 1, 10, 50])
@pytest.mark.parametrize("final_drop", [False, True])
def test_rises_to_one_peak_and_falls_to_the_floor(warmup, final_drop):
    section = Section(warmup=warmup, final_drop=final_drop)
    values = rates(section)
    assert min(values) > 0
    assert max(values) == section.lr
    assert values.count(section.lr) == 1
    assert values.index(section.lr) == warmup
    assert values[:warmup] == sorted(values[:warmup])
    assert values[warmup:] == sorted(values[warmup:], reverse=True)
    assert values[-1] == pytest.approx(section.lr * (FINAL_LR if final_drop else COSINE_FLOOR))


def test_last_tenth_of_the_steps_is_at_a_tenth_of_the_rate():
    values = rates(Section(final_drop=True))
    assert values[90:] == [1e-4] * 10
    assert values[89] > 2e-4


@pytest.mark.parametrize(("total", "start"), [(1, 1), (2, 1), (10, 9), (15, 14), (1000, 900)])
def test_final_phase_is_neither_empty_nor_everything(total, start):
    assert final_phase_start(total) == start


@pytest.mark.parametrize("warmup", [100, 150])
def test_warmup_as_long_as_the_stage_is_refused(warmup):
    with pytest.raises(ValueError, match=f"warmup of {warmup} steps"):
        learning_rate(0, Section(warmup=warmup))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_warmup_as_long_as_the_stage_is_refused_in_params(tiny_params, stage):
    with pytest.raises(ConfigError, match=f"stage-{stage}.warmup"):
        tiny_params({"train": {f"stage-{stage}": {"warmup": 1000}}})


@pytest.mark.parametrize("step", [-1, 100])
def test_steps_outside_the_stage_are_refused(step):
    with pytest.raises(ValueError, match="outside"):
        learning_rate(step, Section())


@pytest.mark.parametrize(("images", "steps"), [(160, 10), (161, 11), (40, 3)])
def test_accumulation_counts_optimizer_steps(tiny_params, images, steps):
    """Case 7: the ceiling; 40 images are 10 batches of 4, in groups of 4."""
    stage = {"images": images, "batch_size": 4, "accumulation": 4, "warmup": 1}
    section = tiny_params({"train": {"stage-1": stage}}).train.stage_1
    assert section.steps == steps
    assert learning_rate(section.steps - 1, section) == pytest.approx(section.lr * COSINE_FLOOR)


def test_warmup_of_several_processes_uses_their_number_of_steps():
    assert learning_rate(49, Section(), num_steps=50) == pytest.approx(1e-3 * COSINE_FLOOR)
