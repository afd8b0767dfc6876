"""A database that can't be used is known at once, not after MLflow's hundred seconds of retries."""

import time

import pytest

from shift_diffusion.tracking import reachable


@pytest.mark.parametrize(
    "uri", ["sqlite:////nowhere/mlflow.db", "postgresql://u:p@127.0.0.1:9/db", "mysql+pymysql://u:p@127.0.0.1:9/db"]
)
def test_unusable_databases(uri):
    start = time.monotonic()
    with pytest.raises(OSError, match="."):
        reachable.check(uri)
    assert time.monotonic() - start < 6


def test_usable_ones(tmp_path):
    reachable.check(f"sqlite:///{tmp_path}/mlflow.db")
    assert not list(tmp_path.iterdir()), "looking leaves nothing behind"
    reachable.check("http://127.0.0.1:9")
