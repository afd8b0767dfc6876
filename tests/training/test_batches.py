"""Batches as a function of the draw: the same for every cut of the group, after every break (cases 7, 9, 13)."""

import numpy as np
import pytest
import torch

from shift_diffusion.process.schedules import schedule_of
from shift_diffusion.training.batches import Ahead, TrainingBatches, micro_batches


@pytest.mark.parametrize(
    ("group", "micro", "world"), [(16, 4, 1), (16, 4, 2), (10, 4, 1), (3, 4, 2), (1, 8, 3), (7, 2, 3)]
)
def test_every_sample_is_worked_on_once_in_equally_many_micro_batches(group, micro, world):
    parts = [micro_batches(group, micro, world, rank) for rank in range(world)]
    assert sorted(sample for rank in parts for part in rank for sample in part) == list(range(group))
    assert len({len(rank) for rank in parts}) == 1
    assert max(len(part) for rank in parts for part in rank) <= micro


def make(short, data, world=1, rank=0, stage=1, **section):
    params = short({"train": {f"stage-{stage}": section}})
    schedule = schedule_of(params.process, params.train.stages[stage - 1])
    return TrainingBatches(params, stage, data, schedule, world, rank)


def joined(batches, field):
    return torch.cat([getattr(batch, field) for batch in batches])


FIELDS = ("images", "eps", "t", "log_snr", "alpha", "sigma", "drop", "quartile")


@pytest.mark.parametrize("cut", [{"batch_size": 4, "accumulation": 4}, {"batch_size": 8, "accumulation": 2}])
def test_a_group_is_the_same_however_it_is_cut(short, data, cut):
    augment = {"augment": {"flip": True, "hsv": 0.1, "shift": 0.1}}
    whole = make(short, data, batch_size=16, **augment).make(3, 16)
    parts = make(short, data, **cut, **augment).make(3, 16)
    for field in FIELDS:
        assert torch.equal(joined(whole, field), joined(parts, field)), field
    assert torch.equal(joined(whole, "images"), joined(parts, "images"))


def test_two_processes_share_the_group_of_one(short, data):
    whole = make(short, data, batch_size=16).make(3, 16)
    halves = [b for rank in (0, 1) for b in make(short, data, world=2, rank=rank, batch_size=8).make(3, 16)]
    for field in FIELDS:
        assert torch.equal(joined(whole, field), joined(halves, field)), field


def test_a_break_changes_nothing(short, data):
    """Case 13: the middle of the second epoch (40 images, 8 a draw)."""
    unbroken = make(short, data)
    before = [unbroken.make(draw, 8)[0] for draw in range(9)]
    after = make(short, data).make(8, 8)[0]
    for field in FIELDS:
        assert torch.equal(getattr(before[8], field), getattr(after, field))
    assert list(before[8].indices) == list(after.indices)


def test_every_image_once_an_epoch_and_no_held_out_one(short, data):
    batches = make(short, data)
    epoch = np.concatenate([batches.make(draw, 8)[0].indices for draw in range(5)])
    assert sorted(epoch) == sorted(data.split("train"))


@pytest.mark.parametrize(("images", "sizes"), [(160, [64, 64, 32]), (48, [48]), (5, [5]), (65, [64, 1])])
def test_number_of_steps_is_the_ceiling_and_the_last_group_what_is_left(short, data, images, sizes):
    """Case 7: accumulation 4 over 10 batches gives 3 steps, over 3 batches 1."""
    batches = make(short, data, images=images, batch_size=16, accumulation=4, warmup=0)
    assert [batches.size_of(step) for step in range(batches.num_steps)] == sizes
    assert sum(len(b.images) for b in batches.make(0, sizes[-1])) == sizes[-1]


def test_fewer_images_than_a_batch_are_met_again(short, tmp_path):
    from tests.training.prepared import write_prepared

    few = write_prepared(tmp_path, num_train=3, num_validation=1)
    batch = make(short, few, batch_size=8).make(0, 8)[0]
    assert len(batch.images) == 8
    assert set(batch.indices) == {0, 1, 2}


def test_a_process_without_work_gets_a_batch_of_no_weight(short, data):
    batches = make(short, data, world=2, rank=1, batch_size=8).make(0, 1)
    assert [batch.weight.tolist() for batch in batches] == [[0.0]]


@pytest.mark.parametrize("probability", [0.0, 0.3, 1.0])
def test_captions_are_dropped_as_often_as_wanted(short, data, probability):
    params = short({"conditioning": {"drop_probability": probability}})
    batches = TrainingBatches(params, 1, data, schedule_of(params.process, params.train.stage_1), 1, 0)
    drop = torch.cat([batches.make(draw, 8)[0].drop for draw in range(60)])
    assert abs(drop.float().mean() - probability) < 0.1


def test_without_captions_there_is_no_condition(short, data):
    params = short({"conditioning": {"style": "none"}, "text": {"encoder": "none"}})
    batch = TrainingBatches(params, 1, data, schedule_of(params.process, params.train.stage_1), 1, 0).make(0, 8)[0]
    assert batch.text is None
    assert batch.drop is None


def test_layout_and_ranges(short, data):
    batch = make(short, data).make(0, 8)[0]
    assert batch.images.dtype == torch.uint8
    assert batch.eps.dtype == torch.float32
    for tensor in (batch.images, batch.eps):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    assert batch.t.dtype == torch.float64
    assert batch.t.min() > 0
    assert batch.t.max() <= 1
    counts = torch.bincount(batch.quartile, minlength=4)
    assert counts.sum() == 8
    assert (counts - 2).abs().max() <= 1
    assert batch.quartile[batch.t.argsort()].tolist() == sorted(batch.quartile.tolist())


def test_ahead_makes_the_right_batches_when_its_guess_was_wrong():
    made = []

    def build(draw: int, size: int) -> tuple[int, int]:
        made.append((draw, size))
        return draw, size

    ahead = Ahead(build)
    assert ahead.take((0, 8), (1, 8)) == (0, 8)
    assert ahead.take((1, 8), (2, 5)) == (1, 8)
    assert ahead.take((2, 8), None) == (2, 8)
    ahead.close()
    assert made.count((1, 8)) == 1


def test_ahead_passes_errors_on():
    def build(draw: int, size: int) -> None:
        raise ValueError(f"draw {draw}")

    ahead = Ahead(build)
    with pytest.raises(ValueError, match="draw 3"):
        ahead.take((3, 8), None)


def test_the_thread_that_makes_batches_starts_no_second_team_of_threads():
    """Two teams on all cores would send the training's own to sleep between operators."""
    ahead = Ahead(lambda draw, size: torch.get_num_threads())
    before = torch.get_num_threads()
    ahead.take((0, 1), (1, 1))
    assert ahead.take((1, 1), None) == 1
    assert torch.get_num_threads() == before
    ahead.close()
