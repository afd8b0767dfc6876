"""A project folder of its own for every test that talks to MLflow, with a database whose tables exist already."""

import os
import shutil
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DVC_YAML = """
stages:
  make:
    cmd: python make.py
    deps: [make.py]
    params: [seed]
    outs: [made]
    metrics: [report.json: {cache: false}]
  use:
    cmd: python use.py
    deps: [made, use.py]
    outs: [used]
"""


@pytest.fixture(scope="session")
def database(pytestconfig) -> Path:
    """An empty MLflow database; making its tables takes seconds, so they are made once for each version of MLflow."""
    import mlflow

    folder = pytestconfig.cache.mkdir(f"mlflow-{mlflow.__version__}")
    path = folder / "mlflow.db"
    if not path.exists():
        fresh = folder / f"fresh-{os.getpid()}.db"
        mlflow.MlflowClient(f"sqlite:///{fresh}").search_experiments()
        os.replace(fresh, path)
    return path


@pytest.fixture
def project(tmp_path, monkeypatch, database) -> Path:
    """The working directory: a project with two stages, params.yaml and an empty store; without the user's settings."""
    for name in [*os.environ]:
        if name.startswith(("MLFLOW_", "SHIFT_DIFFUSION_", "DVC_")) or name in ("RANK", "LOCAL_RANK"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    folder = tmp_path / "a project"
    folder.mkdir()
    (folder / "dvc.yaml").write_text(DVC_YAML)
    shutil.copy(ROOT / "params.yaml", folder)
    shutil.copy(database, folder / "mlflow.db")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def store(project):
    from shift_diffusion.tracking.store import open_store

    return open_store(project)


def stage_runs(store, name: str | None = None) -> list:
    """Runs of stages, newest first."""
    query = "tags.kind = 'stage'" + (f" and tags.stage = '{name}'" if name else "")
    return list(store.client.search_runs([store.experiment_id], query, order_by=["attributes.start_time DESC"]))


def parents(store) -> list:
    return list(store.client.search_runs([store.experiment_id], "tags.kind = 'pipeline'"))


def drain(store) -> None:
    """Sends what a stage left behind because the machine was too busy to send it in time."""
    from shift_diffusion.tracking.background import send_locked
    from shift_diffusion.tracking.journal import journal_root, journals

    deadline = time.monotonic() + 120
    while left := journals(journal_root(store.root)):
        assert time.monotonic() < deadline
        for journal in left:
            send_locked(journal, store)


def artifacts(store, run_id: str, folder: str | None = None) -> list[str]:
    return sorted(item.path for item in store.client.list_artifacts(run_id, folder))


def artifact_text(store, run_id: str, path: str) -> str:
    return Path(store.client.download_artifacts(run_id, path)).read_text(encoding="utf-8")
