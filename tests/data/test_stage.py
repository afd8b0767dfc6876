"""The stage as DVC runs it: outs, exit codes, and the same bytes twice."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from shift_diffusion.config import read_yaml
from tests.conftest import ROOT, merge
from tests.data import files

pytestmark = pytest.mark.slow


def stage(folder, section):
    smoke = merge(read_yaml(ROOT / "params.yaml"), read_yaml(ROOT / "tests" / "smoke.yaml"))
    none = {"text": {"encoder": "none"}, "conditioning": {"style": "none"}}
    (folder / "params.yaml").write_text(yaml.safe_dump(merge(smoke, {**none, "data": section})))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SHIFT_DIFFUSION_TRACKING": "off"}
    command = [sys.executable, "-m", "stages.prepare"]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def outs(folder):
    paths = [*(folder / "data/prepared").iterdir(), *(folder / "reports/prepare").iterdir()]
    return {path.name: path.read_bytes() for path in paths}


def test_outs_are_the_same_twice_and_the_counts_are_printed(tmp_path):
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    for number in range(20):
        files.noise(number).save(pictures / f"{number}.png")
    (pictures / "bad.png").write_bytes(b"junk")
    section = {"source": "folder", "path": str(pictures), "max_rejected_fraction": 0.1}
    first = stage(tmp_path, section)
    assert first.returncode == 0, first.stderr
    assert "21 found, 20 used, 1 skipped (1 not a picture in a known format)" in first.stdout
    assert "20 decoded now, 0 from the cache" in first.stdout
    before = outs(tmp_path)
    assert {"metrics.json", "contact_sheet.png", "info.json", "manifest.jsonl"} <= set(before)
    second = stage(tmp_path, section)
    assert "0 decoded now, 20 from the cache" in second.stdout
    assert outs(tmp_path) == before
    json.loads(before["metrics.json"])


def test_a_bad_folder_is_exit_code_2_and_leaves_nothing(tmp_path):
    done = stage(tmp_path, {"source": "folder", "path": str(tmp_path / "missing")})
    assert done.returncode == 2
    assert "is not a folder" in done.stderr
    assert not (tmp_path / "data" / "prepared").exists()
