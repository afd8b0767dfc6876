"""What makes two runs the same run (cases 13, 16, 28)."""

import pytest
import torch

from shift_diffusion.training.identity import code_hash, run_hash
from shift_diffusion.training.start import start_network


def hash_of(params, data, stage=1, data_hash="blobs", parent=None, device="cpu", world=1):
    return run_hash(stage, params, data_hash, parent, torch.device(device), world)


@pytest.mark.parametrize(
    "overlay",
    [
        {"seed": 1},
        {"model": {"embedding_dim": 32}},
        {"conditioning": {"style": "flux"}},
        {"loss": {"l1": 0.5}},
        {"optim": {"grad_clip": 2.0}},
        {"runtime": {"threads": 2}},
        {"train": {"stage-1": {"lr": 1e-4}}},
        {"train": {"cadence": {"validate": 4}}},
    ],
)
def test_what_determines_the_result_makes_another_run(short, data, overlay):
    assert hash_of(short(overlay), data) != hash_of(short(), data)


@pytest.mark.parametrize(
    "overlay",
    [
        {"train": {"cadence": {"keep_checkpoints": 7}}},
        {"train": {"stage-2": {"lr": 1e-4}}},
        {"evaluate": {"num_samples": 16}},
        {"register": {"promote": False}},
    ],
)
def test_what_does_not_is_the_same_run(short, data, overlay):
    assert hash_of(short(overlay), data) == hash_of(short(), data)


def test_data_stage_device_and_number_of_processes_count(short, data):
    params = short()
    others = [{"data_hash": "x"}, {"stage": 2}, {"device": "cuda"}, {"world": 2}]
    assert len({hash_of(params, data), *(hash_of(params, data, **other) for other in others)}) == 5


def test_one_weight_of_the_parent_counts(short, data):
    parent = start_network(1, short(), data, None)
    before = hash_of(short(), data, stage=2, parent=parent)
    assert hash_of(short(), data, stage=2, parent=parent) == before
    with torch.no_grad():
        parent.core.stem.bias[0] += 1e-6
    assert hash_of(short(), data, stage=2, parent=parent) != before


def test_code_counts():
    assert code_hash(["training/lr.py"]) == code_hash(["training/lr.py"]) != code_hash(["training/ema.py"])
