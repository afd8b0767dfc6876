"""A person's own folder of photographs, through the whole tiny pipeline to a registered model; then ten more."""

import json

import pytest

from tests.data.photographs import write_photographs
from tests.smoke_project import make_clone, run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def registered(folder) -> dict:
    return json.loads((folder / "reports/register.json").read_text(encoding="utf-8"))


def splits(folder) -> dict[str, str]:
    lines = (folder / "data/prepared/manifest.jsonl").read_text(encoding="utf-8").splitlines()
    return {row["id"]: row["split"] for row in map(json.loads, lines)}


def test_from_photographs_to_a_registered_model_and_on_with_ten_more(tmp_path):
    photographs = tmp_path / "my photographs"
    write_photographs(photographs)
    section = {"source": "folder", "path": str(photographs), "validation_fraction": 0.2}
    clone = make_clone(tmp_path / "clone", {"data": section})
    run(clone, "dvc", "repro")
    report = json.loads((clone / "reports/prepare/metrics.json").read_text(encoding="utf-8"))
    assert (report["found"], report["used"]) == (60, 60)
    assert set(report["modes"]) >= {"RGB", "L", "CMYK", "P", "RGBA"}
    assert registered(clone)["promoted"] is True

    before = splits(clone)
    write_photographs(photographs, 10, seed=1)
    continued = run(clone, "dvc", "repro").stdout
    assert "10 decoded now, 60 from the cache" in continued
    after = splits(clone)
    assert len(after) == 70
    assert before.items() <= after.items()
    assert "Running stage 'stage-1'" in continued
    assert "up to date" in run(clone, "dvc", "repro").stdout
