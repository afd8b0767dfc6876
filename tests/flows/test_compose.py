"""compose.yaml and prefect.yaml: good as they are, and each kind of mistake is found."""

from __future__ import annotations

import pytest
import yaml

from flows.check_compose import main, problems_of
from shift_diffusion.config import read_yaml
from tests.flows.conftest import ROOT

TEXT = (ROOT / "compose.yaml").read_text()
EXAMPLE = (ROOT / ".env.example").read_text()


def test_the_projects_own_file_is_good():
    assert main(ROOT / "compose.yaml") == 0


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("ghcr.io/mlflow/mlflow:v3.17.2", "ghcr.io/mlflow/mlflow:latest", "fixed version"),
        ('"127.0.0.1:5000:5000"', '"5000:5000"', "bind it to this host"),
        ("ROOT_SECRET_KEY: ${S3_SECRET_KEY:?see .env.example}", "ROOT_SECRET_KEY: hunter2", "a secret in the file"),
        ("${S3_ACCESS_KEY:?see .env.example}", "${S3_ACCESS_KEY}", "may be empty"),
        ("${S3_ACCESS_KEY:?see .env.example}", "${S3_KEY:?see .env.example}", "not in .env.example"),
        ("buckets: {condition: service_completed_successfully}", "bucket: {condition: x}", "no service bucket"),
        ("  s3:\n  prefect:\n", "  s3:\n", "volume prefect is not declared"),
        ("restart: unless-stopped", "restrat: unless-stopped", "unknown key"),
        ("s3: {condition: service_started}", "mlflow: {condition: service_healthy}", "waits for itself"),
    ],
)
def test_a_mistake_is_found(old, new, problem):
    text = TEXT.replace(old, new)
    assert text != TEXT
    assert any(problem in found for found in problems_of(yaml.safe_load(text), EXAMPLE, text))


def test_a_password_in_the_example_is_found():
    example = EXAMPLE.replace("S3_SECRET_KEY=", "S3_SECRET_KEY=abc")
    assert problems_of(yaml.safe_load(TEXT), example, TEXT) == [
        ".env.example: S3_SECRET_KEY has a value; an example holds none"
    ]


def test_deployments_run_one_at_a_time_in_a_named_zone():
    deployments = read_yaml(ROOT / "prefect.yaml")["deployments"]
    assert [deployment["name"] for deployment in deployments] == ["process", "docker", "kubernetes"]
    for deployment in deployments:
        assert deployment["concurrency_limit"] == {"limit": 1, "collision_strategy": "CANCEL_NEW"}
        assert all(schedule["timezone"] for schedule in deployment["schedules"])
