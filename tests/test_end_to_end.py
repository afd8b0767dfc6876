"""The whole pipeline, tiny but real, in temporary clones: what a stranger would do after cloning."""

import json
import shutil
import subprocess
import sys
import time

import pytest
import yaml

from tests import chaos
from tests.smoke_project import cached_outs, environment, lock, make_clone, run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """One clone, in a folder with a space in its name, after `dvc repro`."""
    folder = make_clone(tmp_path_factory.mktemp("one") / "a clone")
    run(folder, "dvc", "repro")
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    subprocess.run(
        ["git", "-c", "user.name=s", "-c", "user.email=s@localhost", "commit", "-qm", "done"], cwd=folder, check=True
    )
    return folder


def _stale(folder) -> set[str]:
    """Stages that `dvc repro` would run."""
    done = run(folder, "dvc", "repro", "--dry", "--allow-missing")
    return {line.split("'")[1] for line in done.stdout.splitlines() if line.startswith("Running stage")}


def test_every_stage_ran_and_left_its_outs(finished):
    declared = yaml.safe_load((finished / "dvc.yaml").read_text())["stages"]
    assert set(lock(finished)) == set(declared)
    metrics = json.loads((finished / "reports/evaluate/metrics.json").read_text())
    for name in ("fid", "kid", "precision", "recall", "fid_floor"):
        assert f"{name}_efficientnet_lite0" in metrics
    assert metrics["num_samples"] == 32
    registered = json.loads((finished / "reports/register.json").read_text())
    assert registered["promoted"] is True
    assert (finished / "reports/evaluate/grid.png").stat().st_size > 1000


def test_nothing_of_a_run_shows_up_for_git(finished):
    status = run(finished, "git", "status", "--porcelain").stdout
    assert status == ""


def test_a_second_repro_does_nothing_and_quickly(finished):
    run(finished, "dvc", "repro")  # warms the file cache
    start = time.perf_counter()
    done = run(finished, "dvc", "repro")
    assert "Running stage" not in done.stdout
    assert time.perf_counter() - start < 10  # 3 seconds on an idle machine


def test_a_parameter_reruns_what_follows_it_and_no_more(finished):
    text = (finished / "params.yaml").read_text()
    params = yaml.safe_load(text)
    params["evaluate"]["num_samples"] = 33
    (finished / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))
    try:
        assert _stale(finished) == {"evaluate", "register"}
    finally:
        (finished / "params.yaml").write_text(text)
    assert _stale(finished) == set()


@pytest.mark.parametrize(("file", "retrains"), [("evaluation/frechet.py", False), ("models/unet.py", True)])
def test_an_edit_of_code_retrains_only_what_it_changes(finished, file, retrains):
    path = finished / "shift_diffusion" / file
    text = path.read_text()
    path.write_text(text + "\n# edited\n")
    try:
        stale = _stale(finished)
    finally:
        path.write_text(text)
    assert "evaluate" in stale
    assert ("stage-1" in stale) is retrains


def test_another_clone_gives_the_same_bytes(finished, tmp_path):
    other = make_clone(tmp_path / "other")
    run(other, "dvc", "repro", "evaluate", "quantize")
    mine, theirs = cached_outs(finished), cached_outs(other)
    assert len(theirs) >= 10
    assert {path: mine[path] for path in theirs} == theirs


def test_dvc_users_find_their_commands(finished):
    assert "stage-3" in run(finished, "dvc", "dag").stdout
    assert "fid_efficientnet_lite0" in run(finished, "dvc", "metrics", "show").stdout
    assert run(finished, "dvc", "metrics", "diff").returncode == 0
    page = finished / "dvc_plots" / "index.html"
    run(finished, "dvc", "plots", "show", "--out", str(page.parent))
    assert "loss" in page.read_text()
    shutil.rmtree(page.parent)


def test_the_champion_draws_pictures_in_an_empty_folder(finished, tmp_path):
    code = (
        "import mlflow, pandas as pd, io; from PIL import Image; "
        "model = mlflow.pyfunc.load_model('models:/shift-diffusion@champion'); "
        "found = model.predict(pd.DataFrame({'prompt': ['seven', 'three'], 'seed': [1, 2]}), params={'num_steps': 2}); "
        "print([Image.open(io.BytesIO(png)).size for png in found['picture']])"
    )
    env = {**environment(), "MLFLOW_TRACKING_URI": f"sqlite:///{finished}/mlflow.db"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("[(32, 32), (32, 32)]")


def test_bad_params_stop_before_any_work_with_exit_code_2(finished):
    text = (finished / "params.yaml").read_text()
    (finished / "params.yaml").write_text(text.replace("num_samples: 32", "num_sample: 32"))
    try:
        done = run(finished, sys.executable, "-m", "stages.evaluate", check=False)
    finally:
        (finished / "params.yaml").write_text(text)
    assert done.returncode == 2
    assert "evaluate.num_sample: unknown key; did you mean 'num_samples'" in done.stderr


def test_an_experiment_keeps_the_workspace_clean_and_shows_its_change(finished):
    run(finished, "dvc", "exp", "run", "--temp", "-n", "faster", "-S", "evaluate.num_steps=2", "evaluate")
    shown = run(finished, "dvc", "exp", "show", "--csv").stdout
    assert "faster" in shown
    assert _stale(finished) == set()


def test_parameters_changed_after_a_kill_reuse_no_stale_checkpoint(tmp_path):
    """Case 28: killed in stage-2, then another learning rate for stage-1; tests/training/test_kill.py resumes."""
    folder = make_clone(tmp_path / "clone")
    repro = chaos.Repro(folder)
    repro.wait_until(lambda repro: any((folder / ".checkpoints").glob("stage-2-*/step-*")))
    repro.kill()
    assert set(lock(folder)) >= {"prepare", "stage-1"}
    params = yaml.safe_load((folder / "params.yaml").read_text())
    params["train"]["stage-1"]["lr"] *= 0.5
    (folder / "params.yaml").write_text(yaml.safe_dump(params, sort_keys=False))

    done = run(folder, "dvc", "repro", "stage-2")
    assert "Running stage 'prepare'" not in done.stdout
    assert "Running stage 'stage-1'" in done.stdout
    assert "resumed from" not in done.stdout
    assert "up to date" in run(folder, "dvc", "status", "stage-2").stdout, "lock file and outs agree"
    shown = run(folder, "git", "status", "--porcelain").stdout.splitlines()
    assert {line[3:].split("/")[0] for line in shown} <= {"params.yaml", "dvc.lock", "reports"}, "no model for git"
