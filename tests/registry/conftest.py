"""A tiny real network in the folders the pipeline leaves behind, and a store of its own for every test."""

from pathlib import Path

import pytest

from tests.mlflow_project import database, project, store  # noqa: F401
from tests.registry.registry_builder import build_outs


@pytest.fixture(scope="session")
def outs(tmp_path_factory) -> Path:
    """A project folder with models/stage-3, data/reference and reports of a network that was never trained."""
    folder = tmp_path_factory.mktemp("outs")
    build_outs(folder, seed=0)
    return folder
