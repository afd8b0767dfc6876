"""After the project was moved, old runs are listed and their artifacts are found."""

import shutil

from shift_diffusion.tracking import moving, track_stage
from shift_diffusion.tracking.store import open_store
from tests.mlflow_project import artifact_text, drain, stage_runs


def test_moved_project(project, store, monkeypatch, capsys):
    with track_stage("make", {}) as run:
        run.log_text("hello", "note.txt")
    drain(store)
    new = project.parent / "moved"
    shutil.move(project, new)
    monkeypatch.chdir(new)
    store = open_store()
    (old,) = stage_runs(store)
    assert artifact_text(store, old.info.run_id, "note.txt") == "hello"
    assert str(new) in capsys.readouterr().err
    assert (new / "mlflow.db.before-move").is_file()
    with track_stage("use", {}) as run:
        run.log_text("again", "note.txt")
    drain(open_store())
    assert not project.exists(), "nothing may be written to the old place"


def test_command_says_that_nothing_is_to_do(project, store, capsys):
    assert moving.main() == 0
    assert "Nothing to mend" in capsys.readouterr().out


def test_command_leaves_a_server_alone(project, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    assert moving.main() == 2
