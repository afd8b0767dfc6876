"""A small data set and short stages for the training engine's tests."""

import pytest

from shift_diffusion.data.store import PreparedData
from tests.conftest import merge, tiny_params
from tests.training.prepared import write_prepared

SHORT = {
    "runtime": {"precision": "float32"},  # results are compared closely; `auto` is bfloat16 on some machines
    "model": {"widths": [8, 8], "embedding_dim": 16, "norm_groups": 4},
    "train": {"cadence": {"log": 4, "validate": 10, "checkpoint": 5}}
    | {f"stage-{k}": {"images": 160, "batch_size": 8, "warmup": 3} for k in (1, 2, 3)},
}


@pytest.fixture(scope="session")
def data(tmp_path_factory) -> PreparedData:
    return write_prepared(tmp_path_factory.mktemp("prepared"))


@pytest.fixture
def short():
    """params of 20 steps of 8 images a stage, with overrides."""
    return lambda overlay=None: tiny_params(merge(SHORT, overlay or {}))
