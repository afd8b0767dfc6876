"""The flow against a real Prefect server: states, exit codes, what runs beside what, and what is left behind."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import get_current_settings

from flows.pipeline import pipeline
from tests.flows.conftest import wait_until

pytestmark = pytest.mark.slow  # real servers and processes: minutes

ALL = ["prepare", "stage-1", "stage-2", "evaluate", "quantize", "register"]


@pytest.fixture
def here(project, monkeypatch):
    """The project as this process' working folder, for flows run in the test itself."""
    monkeypatch.chdir(project.root)
    return project


def run(**arguments):
    return pipeline(return_state=True, **arguments)


def task_states(state) -> dict[str, str]:
    """Name of each stage's final state, as the server recorded it."""
    flow_run_id = state.state_details.flow_run_id

    def settled():
        with get_client(sync_client=True) as client:
            from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

            runs = client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id])))
        known = {run.name.rpartition("-")[0]: run.state_name for run in runs}
        return known if known and "Running" not in known.values() else None

    return wait_until(settled, what="the server to know the stages' states")


def no_trace(project) -> None:
    """No process and no lock is left."""
    wait_until(lambda: not project.processes(), timeout=60, what="no process left")
    assert "pid" not in (project.root / ".dvc/tmp/rwlock").read_text()
    assert not list((project.root / ".dvc/tmp/flows").glob("*.json"))


def test_everything_then_nothing(here):
    """Cases 28 and 39: DVC's bytes, independent stages at once, and no second cache beside DVC's."""
    here.control(evaluate={"sleep": 4}, quantize={"sleep": 4})
    state = run()
    assert sorted(here.ran()) == sorted(ALL), state.message
    spans = {name: [n["time"] for n in here.times() if n["stage"] == name] for name in ("evaluate", "quantize")}
    assert max(s[0] for s in spans.values()) < min(s[1] for s in spans.values()), "evaluate and quantize overlap"
    assert "didn't change" in here.dvc("repro").stdout
    lock = (here.root / "dvc.lock").read_text()

    shutil.rmtree(here.root / ".dvc/tmp")  # nothing that counts lies in a temporary folder
    again = run()
    assert again.message == "unchanged: DVC found nothing to do"
    results = get_current_settings().results.local_storage_path
    assert not results.exists() or not list(results.iterdir()), "Prefect keeps no results to come back with"
    assert set(task_states(again).values()) == {"Unchanged"}
    assert len(here.ran()) == len(ALL)
    here.dvc("repro", "--force", "--no-run-cache", "evaluate", "quantize")
    assert (here.root / "dvc.lock").read_text() == lock, "the flow's outs are byte for byte those of dvc repro"


@pytest.mark.slow
def test_chosen_stages_forced(here):
    assert run(stages=["stage-1"]).is_completed()
    assert here.ran() == ["prepare", "stage-1"]
    here.forget_times()
    assert run(stages=["stage-1"], force=True).is_completed()
    assert here.ran() == ["stage-1"], "forced alone; what it depends on is up to date"


def test_a_failed_stage_fails_the_flow_and_nothing_later_runs(here):
    here.control(evaluate={"exit": 3}, quantize={"sleep": 3})
    state = run()
    assert state.is_failed()
    assert "evaluate: Failed" in state.message
    assert "evaluate: the reason it failed" in state.message
    assert "register" not in here.ran()
    assert task_states(state)["quantize"] == "Completed", "what ran beside it may finish: its work is kept"
    no_trace(here)
    here.control()
    here.forget_times()
    assert run().is_completed()
    assert sorted(here.ran()) == ["evaluate", "register"], "a repeat runs only what is missing"


@pytest.mark.slow
def test_a_killed_training_is_repeated_and_resumes(here, monkeypatch):
    monkeypatch.setattr("flows.crew.RETRY_DELAY_SECONDS", 0)
    here.control(stage_2={"kill": True})
    state = run()
    assert state.is_completed(), state.message
    assert [note["step"] for note in here.times("start") if note["stage"] == "stage-2"] == [0, 50]


@pytest.mark.slow
def test_a_stage_without_retries_that_is_killed_fails(here):
    here.control(stage_1={"kill": True})
    state = run()
    assert state.is_failed()
    assert "stage-1: Killed" in state.message
    no_trace(here)


@pytest.mark.slow
def test_time_limit(here):
    text = (here.root / "dvc.yaml").read_text()
    (here.root / "dvc.yaml").write_text(text.replace("time_limit_s: 60", "time_limit_s: 15"))
    here.control(stage_2={"sleep": 100})
    state = run(stages=["stage-2"])
    assert state.is_failed()
    assert "stage-2: TimedOut" in state.message, state.message
    assert task_states(state)["stage-2"] == "TimedOut"
    no_trace(here)
    here.control()
    assert run(stages=["stage-2"]).is_completed()
    assert here.times("start")[-1]["step"] > 0, "the next run goes on from the checkpoint"


@pytest.mark.slow
def test_busy_project_fails_at_once(here):
    """Case 30: a second flow is refused with the reason; it neither hangs nor looks completed."""
    here.control(prepare={"sleep": 100})
    first = here.start_flow("pipeline")
    here.wait_for("prepare")
    state = run()
    assert state.is_failed()
    assert f"process {first.pid}" in state.message
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 130


@pytest.mark.slow
def test_a_person_and_the_flow_refuse_each_other(here):
    """Case 30, second half: the flow is Failed, the person's command ends with an error; neither waits for ever."""
    here.control(prepare={"sleep": 20})
    person = subprocess.Popen([sys.executable, "-m", "dvc", "repro", "prepare"], cwd=here.root, env=here.env)
    here.wait_for("prepare")
    state = run(stages=["prepare"])
    assert state.is_failed()
    assert "another DVC command works in this project" in state.message
    assert str(person.pid) in state.message
    assert person.wait(60) == 0

    here.control(stage_1={"sleep": 20})
    flow = here.start_flow("pipeline", "--stage", "stage-1")
    here.wait_for("stage-1")
    done = here.dvc("repro", "stage-1")
    assert done.returncode != 0
    assert "busy" in done.stderr
    assert flow.wait(120) == 0, here.log()


@pytest.mark.slow
def test_bad_input_is_refused_before_any_work(project):
    """Case 40: exit 2 with the nearest valid name, no stage and no flow run started."""
    for arguments, message in (
        (["--set", "train.stage-1.lerning=1"], "train.stage-1.lerning: unknown key"),
        (["--set", "train.stage-3.resolution=100"], "must be twice"),
        (["--stage", "evalute"], "did you mean 'evaluate'"),
    ):
        done = project.flow("pipeline", *arguments)
        assert done.returncode == 2, done.stderr
        assert message in done.stderr
    assert project.ran() == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "state"), [(signal.SIGINT, 130, "Cancelled"), (signal.SIGTERM, -signal.SIGTERM, "Crashed")]
)
def test_ended_from_outside(project, number, code, state):
    project.control(stage_2={"sleep": 100})
    flow = project.start_flow("pipeline")
    project.wait_for("stage-2")
    time.sleep(3)
    flow.send_signal(number)
    assert flow.wait(60) == code
    assert f"Finished in state {state}" in project.log() or state == "Crashed"
    no_trace(project)
    project.control()
    assert project.flow("pipeline").returncode == 0
    steps = [note["step"] for note in project.times("start") if note["stage"] == "stage-2"]
    assert steps[0] == 0
    assert steps[1] > 0, "the next run goes on from the checkpoint"


@pytest.mark.slow
def test_kill_9_of_the_flow(project):
    """Case 37: its stages end, the orphaned run becomes Crashed, the next run resumes."""
    project.control(stage_2={"sleep": 100})
    flow = project.start_flow("pipeline")
    project.wait_for("stage-2")
    time.sleep(3)
    os.kill(flow.pid, signal.SIGKILL)
    flow.wait()
    again = project.start_flow("pipeline")
    project.control()
    assert again.wait(120) == 0, project.log()
    assert "had died without a word: marked Crashed" in project.log()
    assert project.times("start")[-4]["step"] > 0
    no_trace(project)


@pytest.mark.slow
def test_own_server_ends_with_the_flow(toy):
    """No address configured: the flow brings its own server, and kill -9 of the flow ends that too."""
    toy.control(prepare={"sleep": 100})
    flow = toy.start_flow("pipeline")
    toy.wait_for("prepare")
    flow.kill()
    wait_until(lambda: not toy.processes(), timeout=60, what="server and stage gone")
    toy.control()
    done = toy.flow("pipeline", "--stage", "prepare")
    assert done.returncode == 0, done.stderr
    assert not toy.processes()
    assert sys.executable
