"""Shared fixtures: the project's own params.yaml, and the tiny variant that the smoke pipeline runs."""

import copy
from pathlib import Path

import pytest

from shift_diffusion.config import Params, parse_params, read_yaml

ROOT = Path(__file__).resolve().parent.parent


def merge(base: dict, overlay: dict) -> dict:
    """`base` with the values of `overlay`, section by section."""
    merged = copy.deepcopy(base)
    for key, value in overlay.items():
        if isinstance(value, dict) and isinstance(merged.get(key), dict):
            merged[key] = merge(merged[key], value)
        else:
            merged[key] = value
    return merged


def tiny_params(overlay: dict | None = None) -> Params:
    """params.yaml with tests/smoke.yaml and then `overlay` on top."""
    smoke = merge(read_yaml(ROOT / "params.yaml"), read_yaml(ROOT / "tests" / "smoke.yaml"))
    return parse_params(merge(smoke, overlay or {}))


@pytest.fixture
def params() -> Params:
    return parse_params(read_yaml(ROOT / "params.yaml"))


@pytest.fixture(name="tiny_params")
def _tiny_params():
    return tiny_params
