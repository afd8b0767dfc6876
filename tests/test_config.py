"""params.yaml: every fault is one line that names key, value and what is allowed, all of them at once."""

import copy
from pathlib import Path

import pytest

from shift_diffusion.config import ConfigError, load_params, parse_params, read_yaml
from tests.conftest import ROOT, merge


@pytest.fixture
def content():
    return read_yaml(ROOT / "params.yaml")


def _problems(content, overlay):
    with pytest.raises(ConfigError) as caught:
        parse_params(merge(content, overlay))
    return caught.value.problems


def test_the_projects_own_file_is_valid(params):
    assert params.train.stage_3.resolution == 64


@pytest.mark.parametrize(
    ("overlay", "words"),
    [
        ({"train": {"stage-1": {"lerning_rate": 1e-3}}}, ["train.stage-1.lerning_rate", "unknown key"]),
        ({"model": {"widhts": [8]}}, ["model.widhts", "did you mean 'widths'"]),
        ({"optim": {"ema_decya": 0.9}}, ["optim.ema_decya", "did you mean 'ema_decay'"]),
        ({"gradient_checkpoint": True}, ["gradient_checkpoint", "did you mean 'runtime.gradient_checkpointing'"]),
        ({"runtime": {"gradient_checkpoint": True}}, ["runtime.gradient_checkpoint: ", "'gradient_checkpointing'"]),
        ({"train": {"ema_decay": 0.9}}, ["train.ema_decay", "did you mean 'optim.ema_decay'", "cadence"]),
        ({"train": {"stage-1": {"lr": "0.0001"}}}, ["train.stage-1.lr", "'0.0001'", "number"]),
        ({"train": {"stage-1": {"lr": -1.0}}}, ["train.stage-1.lr", "-1.0", "greater than 0"]),
        ({"evaluate": {"num_steps": 0}}, ["evaluate.num_steps", "0", "greater than 0"]),
        ({"evaluate": {"num_steps": -5}}, ["evaluate.num_steps", "-5", "greater than 0"]),
        ({"train": {"stage-2": {"images": 0}}}, ["train.stage-2.images", "0", "greater than 0"]),
        ({"train": {"stage-3": {"resolution": 100}}}, ["train.stage-3.resolution", "100", "twice"]),
        ({"train": {"stage-2": {"resolution": 16}}}, ["train.stage-2.resolution", "16", "twice"]),
        ({"train": {"stage-1": {"resolution": 15}}}, ["train.stage-1.resolution", "15", "not divisible by 2"]),
        ({"model": {"widths": [90, 128]}}, ["model.widths[0]", "90", "norm_groups 8"]),
        ({"train": {"stage-2": {"warmup": 10**6}}}, ["train.stage-2.warmup", "1000000", "less"]),
        ({"train": {"stage-1": {"loss": {"mze": 1.0}}}}, ["train.stage-1.loss.mze", "mse"]),
        ({"train": {"stage-1": {"loss": {"mse": 0.0}}}}, ["train.stage-1.loss", "at least one"]),
        (
            {"loss": {"perceptual": 0.1}} | {"train": {f"stage-{k}": {"resolution": 4 * 2**k} for k in (1, 2, 3)}},
            ["train.stage-1.loss.perceptual", "16 pixels", "has 8"],
        ),
        ({"process": {"schedule": "linear", "prediction": "velocity"}}, ["process.prediction", "eps, x0, v"]),
        ({"process": {"schedule": "sigmoid"}}, ["process.schedule", "'sigmoid'", "cosine"]),
        ({"data": {"source": "folder", "path": "~/pictures"}}, ["data.path", "~/pictures", str(Path.home())]),
        ({"data": {"source": "cifar"}}, ["data.source", "'cifar'", "torchvision:NAME"]),
        ({"conditioning": {"style": "none"}}, ["conditioning.style", "none"]),
        ({"process": {"hybrid_mix": 1.5}}, ["process.hybrid_mix", "1.5", "less than or equal to 1"]),
        ({"seed": True}, ["seed", "True", "integer"]),
        ({"evaluate": {"sampler": "heun", "num_steps": 5}, "process": {"schedule": "linear"}}, ["evaluate.sampler"]),
        ({"optim": {"name": "muon"}, "runtime": {"sharding": "fsdp"}}, ["optim.name", "adamw"]),
    ],
)
def test_bad_input_names_key_value_and_what_is_allowed(content, overlay, words):
    text = "\n".join(_problems(content, overlay))
    for word in words:
        assert word in text


def test_all_problems_at_once(content):
    overlay = {"seed": -1, "optim": {"betas": [0.9, 2.0]}, "data": {"background": "white"}}
    assert len(_problems(content, overlay)) == 3


def test_a_missing_key_is_named(content):
    broken = copy.deepcopy(content)
    del broken["train"]["stage-2"]["lr"]
    with pytest.raises(ConfigError, match=r"train\.stage-2\.lr: missing"):
        parse_params(broken)


@pytest.mark.parametrize("number", ["1e-4", "1E-4", "1.0e-4", "0.0001", "1.e-4", "+1e-4", ".1e-3"])
def test_every_way_to_write_a_float_is_the_same_float(tmp_path, number):
    text = (ROOT / "params.yaml").read_text().replace("weight_decay: 0.0", f"weight_decay: {number}")
    (tmp_path / "params.yaml").write_text(text)
    assert load_params(tmp_path / "params.yaml").optim.weight_decay == 1e-4


def test_a_key_that_stands_twice_is_refused(tmp_path):
    (tmp_path / "params.yaml").write_text("seed: 1\nseed: 2\n")
    with pytest.raises(ConfigError, match=r"params\.yaml: line 1: key 'seed' stands twice"):
        load_params(tmp_path / "params.yaml")


@pytest.mark.parametrize("text", ["", "- a\n", "a: [\n", "\tseed: 1\n"])
def test_a_file_that_is_no_mapping_is_refused_by_name(tmp_path, text):
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(ConfigError, match=r"params\.yaml"):
        load_params(tmp_path / "params.yaml")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        load_params(tmp_path / "nowhere.yaml")


def test_loaded_values_cannot_change(params):
    with pytest.raises(ValueError, match="frozen"):
        params.seed = 3


def test_stage_overrides_of_the_loss(content):
    params = parse_params(merge(content, {"train": {"stage-3": {"loss": {"perceptual": 0.3}}}}))
    assert params.loss_of(params.train.stage_3).perceptual == 0.3
    assert params.loss_of(params.train.stage_1).perceptual == 0.0
