"""One execution of a stage leaves one complete run, whatever way it ends."""

import json
import shutil
import subprocess

import pytest

from shift_diffusion.config import load_params
from shift_diffusion.stage import Terminated
from shift_diffusion.tracking import NullRun, TrackingError, track_stage
from shift_diffusion.tracking.journal import journal_root, journals
from tests.mlflow_project import artifact_text, artifacts, drain, parents, stage_runs

DATASET = {"name": "avatars", "content_hash": "ab" * 32, "num_images": 6000, "source": "avatars"}


def test_everything_of_a_stage_is_remembered(project, store):
    subprocess.run("git init -q && git add -A", shell=True, check=True, cwd=project)
    subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=n@example.com", "commit", "-qm", "first"],
        check=True,
        cwd=project,
    )
    (project / "extra.py").write_text("new = 1\n")
    picture = project / "grid.png"
    picture.write_bytes(b"png")
    params = load_params()
    with track_stage("make", {"data": params.data, "loss": params.loss}, dataset=DATASET) as run:
        for step in range(2500):
            run.log_metrics({"loss": 1 / (1 + step)}, step=step)
        run.log_metrics({"fid": 12.5})
        run.log_artifact(picture, "pictures")
        run.log_params({"classes": [f"class {i}" for i in range(2000)], "Größe (px)": None, "n": {"a": {"b": 1e-4}}})
        (project / "made").mkdir()
        (project / "made" / "x").write_text("1")
        (project / "report.json").write_text("{}")
    drain(store)
    (found,) = stage_runs(store)
    (parent,) = parents(store)
    assert (found.info.status, parent.info.status) == ("FINISHED", "FINISHED")
    assert found.data.tags["mlflow.parentRunId"] == parent.info.run_id
    history = store.client.get_metric_history(found.info.run_id, "loss")
    assert sorted(point.step for point in history) == list(range(2500))
    assert parent.data.metrics["make/fid"] == 12.5
    assert parent.data.params["train.stage-1.lr"]
    assert found.data.params["data.source"] == params.data.source
    assert found.data.params["n.a.b"] == "0.0001"
    assert found.data.params["Gr_e_px_"] == "null"
    assert found.data.params["classes"].endswith("params/classes.txt)")
    assert len(json.loads(artifact_text(store, found.info.run_id, "params/classes.txt"))) == 2000
    assert artifacts(store, found.info.run_id, "pictures") == ["pictures/grid.png"]
    assert found.inputs.dataset_inputs[0].dataset.digest == DATASET["content_hash"][:36]
    tags = found.data.tags
    assert {"mlflow.source.git.commit", "dvc.stage_hash", "version.torch", "python", "config_hash"} <= tags.keys()
    assert "extra.py" in artifact_text(store, found.info.run_id, "record/uncommitted.patch")
    assert json.loads(artifact_text(store, found.info.run_id, "record/outs.json")).keys() == {"made", "report.json"}
    assert "record/uncached" in artifacts(store, found.info.run_id, "record")
    assert artifact_text(store, found.info.run_id, "record/params.yaml") == (project / "params.yaml").read_text()
    assert not journals(journal_root(project)), "what is sent isn't kept twice"


def test_runs_from_every_folder_meet_in_one_store(project, store, monkeypatch, capsys):
    """Case 35: from a sub-folder, from DVC's temporary copy, from Prefect's folder that only DVC_ROOT ties here."""
    copy, elsewhere = project / ".dvc" / "tmp" / "exps" / "tmpabc", project.parent / "elsewhere"
    for folder in (project / "sub" / "deeper", copy, elsewhere):
        folder.mkdir(parents=True)
    shutil.copy(project / "dvc.yaml", copy)
    monkeypatch.setenv("DVC_ROOT", str(project))
    for folder in (project, project / "sub" / "deeper", copy, elsewhere):
        monkeypatch.chdir(folder)
        with track_stage("make", {}):
            pass
    drain(store)
    assert len(stage_runs(store)) == 4
    assert capsys.readouterr().err.count(f"recording in sqlite:///{project}/mlflow.db") == 4
    made = [path for path in project.parent.rglob("*") if path.name in ("mlflow.db", "mlartifacts", "mlruns")]
    assert sorted(made) == [project / "mlartifacts", project / "mlflow.db"]


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (ValueError("no"), "FAILED"),
        (SystemExit(2), "FAILED"),
        (SystemExit("message"), "FAILED"),
        (SystemExit(0), "FINISHED"),
        (KeyboardInterrupt(), "KILLED"),
        (Terminated("signal 15"), "KILLED"),
        (SystemExit(143), "KILLED"),
    ],
)
def test_status_is_true(project, store, ending, status):
    with pytest.raises(type(ending)):
        with track_stage("make", {}):
            raise ending
    drain(store)
    (found,) = stage_runs(store)
    assert found.info.status == status
    assert parents(store)[0].info.status == status
    if isinstance(ending, ValueError):
        assert found.data.tags["error"] == "ValueError: no"


def test_one_parent_per_configuration_and_the_way_from_run_to_run(project, store):
    params = (project / "params.yaml").read_text()
    with track_stage("make", {"optim": {"lr": 1e-3}}) as first:
        pass
    with track_stage("use", {}):
        pass
    drain(store)
    (project / "params.yaml").write_text(params.replace("seed: 0", "seed: 1"))
    with pytest.raises(KeyboardInterrupt), track_stage("make", {"optim": {"lr": 5e-4}}):
        raise KeyboardInterrupt
    drain(store)
    assert len(parents(store)) == 2
    newest, oldest = stage_runs(store, "make")
    assert oldest.info.run_id == first.journal.sent.get("run_id", oldest.info.run_id)
    assert newest.data.tags["previous_run"] == oldest.info.run_id
    assert newest.data.tags["changed_params"] == "optim.lr: 0.001 -> 0.0005"
    assert newest.data.tags["mlflow.parentRunId"] != oldest.data.tags["mlflow.parentRunId"]


def test_a_value_that_changes_within_a_run_becomes_a_tag(project, store):
    with track_stage("make", {"lr": 1}) as run:
        run.log_params({"lr": 2})
    drain(store)
    (found,) = stage_runs(store)
    assert found.data.params["lr"] == "1"
    assert found.data.tags["changed_param.lr"] == "2"


def test_nan_and_odd_names_are_logged(project, store):
    with track_stage("make", {}) as run:
        run.log_metrics({"loss (ä)": float("nan"), "max": float("inf")}, step=3)
    drain(store)
    (found,) = stage_runs(store)
    assert {"loss_", "max"} <= found.data.metrics.keys()


def test_missing_artifact_is_said_and_survived(project, store, capsys):
    with track_stage("make", {}) as run:
        run.log_artifact("nowhere.png")
    assert "nowhere.png" in capsys.readouterr().err
    drain(store)
    assert stage_runs(store)[0].info.status == "FINISHED"


def test_only_the_first_process_of_a_training_is_tracked(project, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    with track_stage("make", {}) as run:
        run.log_metrics({"loss": 1.0})
        run.log_artifact("nowhere.png")
        run.set_tag("a", 1)
    assert type(run) is NullRun
    assert not journals(journal_root(project))
    with pytest.raises(TrackingError):
        run.require_id()


def test_what_the_server_refuses_does_not_hold_back_the_rest(project, store):
    with track_stage("make", {}) as run:
        run.journal.append("tags", values={"": "a tag without a name"})
        run.journal.append("artifact", file=run.journal.keep_text("note.txt", "a"), folder="../up")
        run.log_metrics({"loss": 1.0}, step=0)
    drain(store)
    (found,) = stage_runs(store)
    assert found.info.status == "FINISHED"
    assert found.data.metrics["loss"] == 1.0
    assert {"refused", "artifacts_missing"} <= found.data.tags.keys()


def test_a_run_that_was_deleted_meanwhile_is_let_go(project, store):
    with track_stage("make", {}) as run:
        store.client.delete_run(run.require_id())
    drain(store)
    assert not stage_runs(store)
