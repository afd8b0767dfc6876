"""Signals to the real stage command under DVC: tests/chaos.py does twenty kills, this a few of each kind."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests import chaos
from tests.smoke_project import environment, make_clone, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """(origin, its clone after an undisturbed run)"""
    folder = tmp_path_factory.mktemp("undisturbed")
    origin = make_clone(folder / "origin")
    run(chaos.clone(origin, folder / "clone"), "dvc", "repro", *chaos.TARGETS)
    return origin, folder / "clone"


@pytest.mark.parametrize(
    "moment",
    [chaos.in_stage("prepare", 1.0), chaos.writing_checkpoint(7), chaos.in_stage("evaluate", 3.0)],
    ids=["prepare", "checkpoint", "evaluate"],
)
def test_a_killed_pipeline_ends_in_the_same_bytes(undisturbed, tmp_path, moment):
    origin, finished = undisturbed
    assert chaos.kill_once(origin, tmp_path / "clone", moment, chaos.contents(finished)) == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_stage_leaves_a_checkpoint_and_a_true_status_within_ten_seconds(tmp_path, signum, code):
    folder = make_clone(tmp_path / "clone", {"train": {"stage-1": {"images": 64000}}})
    run(folder, "dvc", "repro", "prepare")
    stage = subprocess.Popen(
        [sys.executable, "-m", "stages.train", "--stage", "1"], cwd=folder, env=environment(), stderr=subprocess.PIPE
    )
    while not list((folder / ".checkpoints").glob("stage-1-*/step-00000005")):
        assert stage.poll() is None
        time.sleep(0.01)
    os.kill(stage.pid, signum)
    start = time.monotonic()
    _, message = stage.communicate(timeout=60)
    assert time.monotonic() - start < 10
    assert stage.returncode == code
    assert b"goes on from the last checkpoint" in message
    (newest,) = (folder / ".checkpoints").glob("stage-1-*/*-interrupted")
    assert int(newest.name.split("-")[1]) > 5
    assert statuses(folder)["stage-1"] == ["KILLED"]


def test_ctrl_c_in_any_stage_is_a_clean_stop_and_the_next_run_goes_on(tmp_path):
    folder = make_clone(tmp_path / "clone")
    stages = ("prepare", "reference", "stage-2", "evaluate", "quantize", "benchmark", "register")
    for stage in stages:
        repro = chaos.Repro(folder, targets=())
        assert repro.wait_until(chaos.recorded_in(stage)), f"{stage} never began:\n{repro.log.read_text()[-3000:]}"
        start = time.monotonic()
        assert repro.kill(signal.SIGINT) != 0
        assert time.monotonic() - start < 10, stage
        assert "stopped by Ctrl-C" in repro.log.read_text(), stage
        assert "Traceback" not in repro.log.read_text(), stage
        assert stage not in chaos.finished_stages(folder)
    run(folder, "dvc", "repro")
    found = statuses(folder)
    assert {stage: found[stage] for stage in stages} == dict.fromkeys(stages, ["KILLED", "FINISHED"])
    assert [found[stage] for stage in ("stage-1", "stage-3")] == [["FINISHED"]] * 2


def statuses(folder) -> dict[str, list[str]]:
    """stage -> statuses of its runs, oldest first"""
    code = (
        "import json; from mlflow import MlflowClient; c = MlflowClient(); found = {}\n"
        "experiments = [e.experiment_id for e in c.search_experiments()]\n"
        "for run in c.search_runs(experiments, order_by=['attributes.start_time ASC']):\n"
        "    found.setdefault(run.data.tags.get('stage'), []).append(run.info.status)\n"
        "print(json.dumps(found))"
    )
    env = {**environment(), "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.strip().splitlines()[-1])
