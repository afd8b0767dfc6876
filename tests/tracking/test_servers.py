"""Real servers that are killed while a training runs: nothing is missing at the end."""

import os
import subprocess
import sys
import time

import pytest

from shift_diffusion.tracking.background import sweep
from shift_diffusion.tracking.journal import journal_root, journals
from shift_diffusion.tracking.store import open_store
from tests.mlflow_project import artifact_text, parents, stage_runs
from tests.tracking.servers import MlflowServer, Postgres

pytestmark = pytest.mark.slow

# Says after each step that it has made it, and goes on when it is told to.
TRAINING = """
import sys
from shift_diffusion.tracking import track_stage
with track_stage("make", {"seed": 0}) as run:
    for step in range(100):
        run.log_metrics({"loss": 1 / (1 + step), "lr": 0.1}, step=step)
        print(step, flush=True)
        sys.stdin.readline()
    run.log_text("done", "note.txt")
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def server(request, project, tmp_path, monkeypatch):
    folder = tmp_path / "server"
    folder.mkdir()
    postgres = None
    if request.param == "postgresql":
        postgres = Postgres()
        postgres.start()
    server = MlflowServer(folder, postgres.uri if postgres else f"sqlite:///{folder}/mlflow.db")
    try:
        server.start()
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        yield server
    finally:
        server.kill()
        if postgres:
            postgres.stop()


def test_server_killed_at_step_10_and_started_at_step_50(project, server):
    training = subprocess.Popen(
        [sys.executable, "-c", TRAINING],
        cwd=project, env=dict(os.environ), text=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    slowest = 0.0
    for step in range(100):
        assert training.stdout.readline() == f"{step}\n"
        if step == 10:
            time.sleep(8)  # the run exists on the server by now
            server.kill()
        if step == 50:
            server.start()
        if 10 < step < 50:
            time.sleep(0.2)
        before = time.monotonic()
        training.stdin.write("\n")
        training.stdin.flush()
        slowest = max(slowest, time.monotonic() - before)
    _, errors = training.communicate(timeout=180)
    assert training.returncode == 0
    assert slowest < 1
    assert errors.count("can't be used") <= 1, errors
    store = open_store(project)
    sweep(journal_root(project), store)
    (run,) = stage_runs(store)
    assert run.info.status == "FINISHED"
    for name in ("loss", "lr"):
        history = store.client.get_metric_history(run.info.run_id, name)
        assert sorted(point.step for point in history) == list(range(100)), f"{name} is incomplete or doubled"
    assert artifact_text(store, run.info.run_id, "note.txt") == "done"
    assert [parent.info.status for parent in parents(store)] == ["FINISHED"]
    assert not journals(journal_root(project))


def test_postgresql_directly_with_a_password_in_its_address(project, monkeypatch, capfd):
    postgres = Postgres()
    postgres.start()
    try:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", postgres.uri)
        monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "direct")
        from shift_diffusion.tracking import track_stage

        with track_stage("make", {"seed": 0}) as run:
            run.require_id(timeout=120)
            run.log_metrics({"loss": 1.0}, step=0)
        store = open_store(project)
        (found,) = stage_runs(store)
        assert found.info.status == "FINISHED"
        kept = [found.data.tags, found.data.params, *(parent.data.tags for parent in parents(store))]
        assert Postgres.PASSWORD not in repr(kept)
        out, errors = capfd.readouterr()
        assert Postgres.PASSWORD not in out + errors
    finally:
        postgres.stop()
