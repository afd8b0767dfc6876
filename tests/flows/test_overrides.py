"""`--set`: read as DVC reads numbers, checked before anything is written, the file's layout kept; DVC's own `-S`."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from flows import overrides
from shift_diffusion.config import ConfigError, load_params
from tests.flows.conftest import ROOT


@pytest.fixture
def params_file(tmp_path):
    return shutil.copy(ROOT / "params.yaml", tmp_path / "params.yaml")


@pytest.mark.parametrize("number", ["1e-4", "1E-4", "0.0001", "1.0e-4"])
def test_every_way_to_write_a_number(params_file, number):
    """Case 29: DVC's YAML 1.2 reads 1e-4 as a number, so do we, and so does who reads the file next."""
    overrides.apply(params_file, [f"train.stage-1.lr={number}"])
    assert load_params(params_file).train.stage_1.lr == 1e-4


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.lerning_rate=1e-3", "train.lerning_rate: unknown key"),
        ("trian.stage-1.lr=1e-3", "trian: unknown key; did you mean 'train'"),
        ("train.stage-1.lr='0.0001'", "train.stage-1.lr: '0.0001' is not allowed"),
        ("train.stage-1.lr=-1", "train.stage-1.lr"),
        ("seed.more=1", "'seed' is a value, not a section"),
        ("seed", "expected KEY=VALUE"),
        ("evaluate.seeds=[1,", "not a YAML value"),
    ],
)
def test_refused_and_nothing_written(params_file, assignment, message):
    before = params_file.read_bytes()
    with pytest.raises(ConfigError, match=message.replace("[", r"\[")):
        overrides.apply(params_file, ["seed=3", assignment])
    assert params_file.read_bytes() == before


def test_only_the_named_lines_change(params_file):
    before = params_file.read_text().splitlines()
    overrides.apply(params_file, ["seed=3", "evaluate.seeds=[4, 5]"])
    after = params_file.read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert [new.split("#")[0].strip() for _, new in changed] == ["seed: 3", "seeds: [4, 5]"]
    assert "#" in changed[0][1], "comments stay"


def test_nothing_to_change_leaves_the_file_alone(params_file):
    before = params_file.stat().st_mtime_ns
    overrides.apply(params_file, ["seed=0"])
    assert params_file.stat().st_mtime_ns == before


@pytest.fixture
def committed(toy):
    """`dvc exp run` needs a commit."""
    author = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run(["git", *author, *command], cwd=toy.root, check=True)
    return toy


@pytest.mark.slow
@pytest.mark.parametrize("number", ["1e-6", "1E-6", "0.000001"])
def test_a_small_number_by_dvcs_own_option_stays_a_number(committed, number):
    """Case 29: DVC writes 0.000001 back as 1e-06, which other YAML readers take for text."""
    done = committed.dvc("exp", "run", "-S", f"train.stage-1.lr={number}", "stage-1")
    assert done.returncode == 0, done.stderr
    assert (committed.root / "models/stage-1.txt").read_text().endswith(" 1 1e-06")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("train.stage-1.lerning_rate=1e-3", "lerning_rate"),
        ("+train.stage-1.lerning_rate=1e-3", "train.stage-1.lerning_rate: unknown key"),
        ("train.stage-1.lr='0.0001'", "train.stage-1.lr: '0.0001' is not allowed"),
    ],
)
def test_a_mistake_by_dvcs_own_option_trains_nothing(committed, assignment, message):
    done = committed.dvc("exp", "run", "-S", assignment, "stage-1")
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
    assert not (committed.root / "models/stage-1.txt").exists()
