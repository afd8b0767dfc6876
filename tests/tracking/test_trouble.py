"""Servers stumble, disks are read-only, processes are killed: work goes on, the record ends complete and true."""

import os
import signal
import subprocess
import sys
import time
from textwrap import indent

import pytest

from shift_diffusion.tracking import TrackingError, track_stage
from shift_diffusion.tracking.background import sweep
from shift_diffusion.tracking.journal import journal_root, journals
from shift_diffusion.tracking.owner import has_vanished, this_process
from tests.mlflow_project import drain, parents, stage_runs

NOWHERE = "http://someone:hunter2@127.0.0.1:9"
CHILD = """
import sys, time
from shift_diffusion.tracking import track_stage
with track_stage("make", {"seed": 0}) as run:
    for step in range(int(sys.argv[1])):
        run.log_metrics({"loss": float(step)}, step=step)
    print("logged", flush=True)
    for _ in range(int(10 * float(sys.argv[2]))):  # a signal between two bytecodes doesn't wake a sleep that follows
        time.sleep(0.1)
"""


def child(project, steps: int, pause: float, **environment) -> subprocess.Popen:
    command = [sys.executable, "-c", CHILD, str(steps), str(pause)]
    return subprocess.Popen(command, cwd=project, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True)


def steps_of(store, run) -> list[int]:
    return sorted(point.step for point in store.client.get_metric_history(run.info.run_id, "loss"))


def test_no_server_from_the_start(project, store, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    start = time.monotonic()
    with track_stage("make", {}) as run:
        for step in range(100):
            run.log_metrics({"loss": 1.0}, step=step)
        working = time.monotonic() - start
    assert working < 2
    assert time.monotonic() - start < 30
    errors = capsys.readouterr().err
    assert errors.count("can't be used") == 1
    assert "hunter2" not in errors
    assert "hunter2" not in "".join(j.events_file.read_text() for j in journals(journal_root(project)))
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert not stage_runs(store)
    assert journals(journal_root(project))
    drain(store)
    (late,) = stage_runs(store, "make")
    assert late.info.status == "FINISHED"
    assert steps_of(store, late) == list(range(100))


def test_registration_needs_a_server(project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(TrackingError, match="127.0.0.1:9") as caught, track_stage("register", {}) as run:
        run.require_id(timeout=20)
    assert "hunter2" not in str(caught.value)


def test_kill_9_is_found_at_the_next_start(project, store):
    process = child(project, 50, 60)
    assert process.stdout.readline() == "logged\n"
    process.kill()
    process.wait()
    (left,) = journals(journal_root(project))
    with open(left.events_file, "a") as file:
        file.write('{"kind": "metr')  # the kill came in the middle of a line
    with track_stage("use", {}):
        pass
    sweep(journal_root(project), store)
    drain(store)
    (killed,) = stage_runs(store, "make")
    assert killed.info.status == "KILLED"
    assert killed.data.tags["ended_by"] == "process vanished"
    assert steps_of(store, killed) == list(range(50))
    assert {run.info.status for run in parents(store)} == {"KILLED"}


def test_run_of_a_vanished_process_without_a_journal_is_closed(project, store):
    with track_stage("make", {}):
        pass
    drain(store)
    (run,) = stage_runs(store)
    store.client.update_run(run.info.run_id, status="RUNNING")
    store.client.set_tag(run.info.run_id, "process.pid", str(2**22 - 1))
    sweep(journal_root(project), store)
    assert stage_runs(store)[0].info.status == "KILLED"


def test_only_certain_deaths_count():
    owner = this_process()
    assert not has_vanished(owner)
    assert has_vanished({**owner, "started": owner["started"] - 100}), "the number was given to another process"
    assert not has_vanished({**owner, "pid": 2**22 - 1, "host": "elsewhere"})
    assert not has_vanished({})


def test_sigterm_ends_quickly_and_as_killed(project, store):
    imports, stage = CHILD.split("with track_stage", 1)
    main = "def main():\n" + indent("with track_stage" + stage, "    ")
    code = f"{imports}from shift_diffusion.stage import run_stage\n{main}\nrun_stage(main)"
    command = [sys.executable, "-c", code, "5", "60"]
    process = subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True, stderr=subprocess.PIPE)
    assert process.stdout.readline() == "logged\n"
    start = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert time.monotonic() - start < 15
    sweep(journal_root(project), store)
    assert stage_runs(store)[0].info.status == "KILLED"


SWALLOWS = """
import os, signal, sys
from shift_diffusion.stage import run_stage
from shift_diffusion.tracking import track_stage

class Library:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))  # raised in here, the exception is dropped

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where pytest itself is a shell's background job

def main():
    with track_stage("make", {}):
        Library()
        print("went on")

run_stage(main)
"""


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_that_a_library_swallows_is_still_a_stop(project, store, signum, code):
    command = [sys.executable, "-c", SWALLOWS, str(int(signum))]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "went on\n")
    assert "the next run goes on" in done.stderr
    sweep(journal_root(project), store)
    assert stage_runs(store)[0].info.status == "KILLED"


def test_artifact_folder_that_refuses(project, store):
    (project / "mlartifacts").write_text("a file where the folder should be")
    picture = project / "grid.png"
    picture.write_bytes(b"png")
    with track_stage("make", {}) as run:
        run.log_artifact(picture)
        run.log_metrics({"loss": 1.0}, step=0)
    drain(store)
    (found,) = stage_runs(store)
    assert found.info.status == "FINISHED"
    assert found.data.metrics["loss"] == 1.0
    assert found.data.tags["artifacts_missing"]


def test_database_locked_by_someone_else(project, store):
    import sqlite3

    with track_stage("make", {}) as run:
        holder = sqlite3.connect(project / "mlflow.db", isolation_level=None, check_same_thread=False)
        holder.execute("BEGIN IMMEDIATE")
        run.log_metrics({"loss": 1.0}, step=0)
        time.sleep(3)
        holder.execute("COMMIT")
        holder.close()
    drain(store)
    assert steps_of(store, stage_runs(store)[0]) == [0]


@pytest.mark.slow
def test_two_pipelines_at_once_on_one_sqlite_file(project, store):
    processes = [child(project, 500, 4) for _ in range(3)]
    for process in processes:
        process.communicate(timeout=120)
        assert process.returncode == 0
    sweep(journal_root(project), store)
    runs = stage_runs(store)
    assert [run.info.status for run in runs] == ["FINISHED"] * 3
    assert all(steps_of(store, run) == list(range(500)) for run in runs)
    assert len(parents(store)) == 1


@pytest.mark.slow
def test_first_start_of_two_at_once_makes_one_store(project):
    (project / "mlflow.db").unlink()
    processes = [child(project, 5, 0) for _ in range(2)]
    for process in processes:
        process.communicate(timeout=240)
        assert process.returncode == 0
    from shift_diffusion.tracking.store import open_store

    store = open_store(project)
    sweep(journal_root(project), store)
    assert len(stage_runs(store)) == 2
    assert len(parents(store)) == 1


@pytest.mark.slow  # MLflow takes seconds to make its tables
@pytest.mark.parametrize("size", [1, 100_000, 400_000])
def test_kill_9_in_the_middle_of_the_first_start(project, size):
    """MLflow could neither use nor mend the half-made tables."""
    from shift_diffusion.tracking.store import open_store

    (project / "mlflow.db").unlink()
    half = project / ".creating-mlflow.db"
    command = [sys.executable, "-c", "from shift_diffusion.tracking.store import open_store; open_store()"]
    process = subprocess.Popen(command, cwd=project)
    while not half.exists() or half.stat().st_size < size:
        assert process.poll() is None, "the moment didn't come"
        time.sleep(0.001)
    process.kill()
    process.wait()
    assert half.exists()
    with track_stage("make", {}):
        pass
    store = open_store(project)
    drain(store)
    assert [run.info.status for run in stage_runs(store, "make")] == ["FINISHED"]
    assert not list(project.glob(".creating-*"))
