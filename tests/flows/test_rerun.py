"""Any past run can be made again from its record: identical, or the stage that differs is named."""

import os
import subprocess
import sys

import pytest

from flows import rerun
from tests.mlflow_project import database, project, stage_runs, store  # noqa: F401

MAKE = """
import pathlib, yaml, lib
from shift_diffusion.tracking import track_stage
seed = yaml.safe_load(open("params.yaml"))["seed"]
with track_stage("make", {"seed": seed}) as run:
    out = pathlib.Path("made")
    out.mkdir(exist_ok=True)
    (out / "x").write_text(lib.text(seed))
    pathlib.Path("report.json").write_text("{}")
    run.log_metrics({"length": len(lib.text(seed))})
"""
USE = """
import pathlib
from shift_diffusion.tracking import track_stage
with track_stage("use", {}) as run:
    pathlib.Path("used").write_text(pathlib.Path("made/x").read_text() * 2)
"""
DVC = """
stages:
  make:
    cmd: python make.py
    deps: [make.py, lib.py]
    params: [seed]
    outs: [made]
    metrics: [report.json: {cache: false}]
  use:
    cmd: python use.py
    deps: [made, use.py]
    outs: [used]
"""
IGNORED = ["/made", "/used", ".mlflow/", "mlflow.db*", "mlartifacts/", "__pycache__/"]


def sh(folder, *command):
    env = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"}
    env |= {f"GIT_{who}_{what}": "n@example.com" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commit(folder, message):
    sh(folder, "git", "add", "-A")
    sh(folder, "git", "commit", "-qm", message)


@pytest.fixture
def pipeline(project):  # noqa: F811
    """A real DVC project of two tiny stages, run once."""
    for name, text in (("make.py", MAKE), ("use.py", USE), ("dvc.yaml", DVC), (".gitignore", "\n".join(IGNORED))):
        (project / name).write_text(text)
    (project / "lib.py").write_text("def text(seed):\n    return f'first {seed}'\n")
    sh(project, "git", "init", "-q")
    sh(project, sys.executable, "-m", "dvc", "init", "-q")
    sh(project, sys.executable, "-m", "dvc", "config", "core.analytics", "false")
    commit(project, "first")
    sh(project, sys.executable, "-m", "dvc", "repro")
    commit(project, "made")
    return project


@pytest.mark.slow
def test_a_run_of_three_commits_ago(pipeline, store, capfd):  # noqa: F811
    (run,) = stage_runs(store, "use")
    for number in range(3):
        (pipeline / "lib.py").write_text(f"def text(seed):\n    return f'edit {number} {{seed}}'\n")
        commit(pipeline, f"edit {number}")
    assert rerun.main([run.info.run_id]) == 0
    out = capfd.readouterr().out
    assert out.splitlines()[-1] == "identical"
    assert "note: in your working tree make would not be the same: lib.py changed since that run" in out
    assert rerun.main([run.info.run_id, "--check"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "identical"
    assert rerun.main([run.info.run_id, "--code", "."]) == 1
    out = capfd.readouterr().out
    assert "make: differs: out made, input lib.py" in out
    assert out.splitlines()[-1] == "differs: make, use"
    assert sh(pipeline, "git", "worktree", "list").count("\n") == 1, "the worktree is gone"
    assert len(stage_runs(store)) == 2, "a rerun doesn't write the past anew"
    parent = run.data.tags["mlflow.parentRunId"]
    assert rerun.main([parent, "--keep", str(pipeline.parent / "then")]) == 0
    assert (pipeline.parent / "then" / "used").read_text() == "first 0first 0"


@pytest.mark.slow
def test_uncommitted_changes_are_part_of_the_record(pipeline, store, capfd):  # noqa: F811
    (pipeline / "lib.py").write_text("import helper\ndef text(seed):\n    return helper.WORD\n")
    (pipeline / "helper.py").write_text("WORD = 'never committed'\n")
    sh(pipeline, sys.executable, "-m", "dvc", "repro")
    run = stage_runs(store, "use")[0]
    sh(pipeline, "git", "checkout", "-q", ".")
    (pipeline / "helper.py").unlink()
    assert rerun.main([run.info.run_id, "--check"]) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "identical"


@pytest.mark.slow
def test_what_cannot_be_made_again_says_why(pipeline, store, capsys):  # noqa: F811
    assert rerun.main(["0" * 32]) == 2
    assert "can't be read" in capsys.readouterr().err
    run = stage_runs(store, "use")[0]
    store.client.delete_tag(run.info.run_id, "mlflow.source.git.commit")
    assert rerun.main([run.info.run_id]) == 2
    assert "record lacks: git commit" in capsys.readouterr().err
    store.client.set_tag(run.info.run_id, "mlflow.source.git.commit", "0" * 40)
    assert rerun.main([run.info.run_id]) == 2
    assert "git worktree add" in capsys.readouterr().err


@pytest.mark.slow
def test_pictures_that_dvc_keeps_are_those_of_that_time(pipeline, store, capfd):  # noqa: F811
    raw = pipeline / "data" / "raw"
    raw.mkdir(parents=True)
    (raw / "a.txt").write_text("first")
    (pipeline / "lib.py").write_text("def text(seed):\n    return open('data/raw/a.txt').read()\n")
    (pipeline / "dvc.yaml").write_text(DVC.replace("lib.py]", "lib.py, data/raw]"))

    def new_pictures():
        sh(pipeline, sys.executable, "-m", "dvc", "add", "-q", "data/raw")
        sh(pipeline, sys.executable, "-m", "dvc", "repro")
        commit(pipeline, "pictures")

    new_pictures()
    first = stage_runs(store, "make")[0]
    (raw / "a.txt").write_text("second")
    new_pictures()
    assert (pipeline / "made" / "x").read_text() == "second"
    assert rerun.main([first.info.run_id, "--check"]) == 0, capfd.readouterr()
    assert "make: identical" in capfd.readouterr().out
    assert (raw / "a.txt").read_text() == "second"  # the working tree keeps its own
