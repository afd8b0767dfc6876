"""The door to MLflow: one client, the experiment, the checks of the default store. mlflow is imported when it opens."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from shift_diffusion.tracking import reachable
from shift_diffusion.tracking.journal import journal_root
from shift_diffusion.tracking.location import (
    artifact_root,
    default_database,
    experiment_name,
    project_root,
    tracking_uri,
)
from shift_diffusion.tracking.moving import mend_after_move

if TYPE_CHECKING:
    from mlflow import MlflowClient

# MLflow's own defaults (7 retries, 120 s) would make a dead server cost a quarter of an hour. What the user sets wins.
HTTP_DEFAULTS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "20",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
}


class TrackingError(RuntimeError):
    """MLflow couldn't be reached or refused. The message names the address without its password."""


@dataclass(frozen=True)
class Store:
    client: MlflowClient
    experiment_id: str
    root: Path
    uri: str

    def lock(self, name: str, timeout: float = 60.0) -> FileLock:
        """One process of this project at a time (parent runs, promotion); a killed holder's lock is free at once."""
        return FileLock(journal_root(self.root) / f"{name}.lock", timeout=timeout)


def open_store(root: Path | None = None) -> Store:
    """Opens the project's store, creating database and experiment where they don't exist yet.

    Raises: whatever MLflow raises when the store can't be used; callers turn it into a warning or a TrackingError.
    """
    root = root or project_root()
    uri = tracking_uri(root)
    reachable.check(uri)
    database = default_database(root)
    with FileLock(journal_root(root) / "store.lock", timeout=120):  # two first starts would both create the tables
        if database is not None:
            _create(database)
        client = make_client(uri)
        if database is not None:
            mend_after_move(database, artifact_root(root))
        experiment_id = _experiment(client, root, default=database is not None)
    return Store(client, experiment_id, root, uri)


def make_client(uri: str) -> MlflowClient:
    _settings()
    from mlflow import MlflowClient

    return MlflowClient(tracking_uri=uri, registry_uri=uri)


def _settings() -> None:
    """Before mlflow is imported."""
    for name, value in HTTP_DEFAULTS.items():
        os.environ.setdefault(name, value)
    for name in ("mlflow.store.db.utils", "alembic"):  # a first start isn't news, and of trouble we speak ourselves
        logging.getLogger(name).setLevel(logging.ERROR)


def _create(database: Path) -> None:
    """A first start makes the tables under another name: MLflow can't go on with what a killed process left unfinished.

    The stage waits for nobody here, so it may well end, or be killed, in these seconds.
    """
    if database.exists():
        return
    fresh = database.with_name(f".creating-{database.name}")
    for leftover in database.parent.glob(f"{fresh.name}*"):  # with SQLite's journal of it
        leftover.unlink()
    _settings()
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    SqlAlchemyStore(f"sqlite:///{fresh}", "./mlruns").engine.dispose()  # as MlflowClient would
    if database.exists():  # of `mlflow ui`, which knows nothing of our lock
        fresh.unlink()
    else:
        fresh.rename(database)


def _experiment(client: MlflowClient, root: Path, default: bool) -> str:
    name = experiment_name()
    found = client.get_experiment_by_name(name)
    if found is None:
        location = artifact_root(root).as_uri() if default else None
        return client.create_experiment(name, artifact_location=location)
    if found.lifecycle_stage == "deleted":
        client.restore_experiment(found.experiment_id)
    return found.experiment_id
