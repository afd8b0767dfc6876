"""The Prefect UI of a finished retraining, as a person sees it. UI_SCREENSHOT=docs/retrain.png keeps the picture."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from PIL import Image

from flows.retrain import retrain

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def page(address: str, out: Path, profile: Path, *what: str) -> str:
    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}",
        "--window-size=1400,1700", "--virtual-time-budget=30000", *what, address,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=out.parent, capture_output=True, text=True, timeout=240)
    return done.stdout


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_run_and_report_in_the_browser(project, prefect_url, monkeypatch, tmp_path):
    monkeypatch.chdir(project.root)
    state = retrain(return_state=True)
    assert state.is_completed()
    base = prefect_url.removesuffix("/api")
    run = f"{base}/runs/flow-run/{state.state_details.flow_run_id}"
    text = page(run, tmp_path / "x", tmp_path / "profile", "--dump-dom")
    for stage in ("prepare", "stage-1", "stage-2", "evaluate", "quantize", "register"):
        assert stage in text
    out = tmp_path / "report.png"
    page(f"{base}/artifacts/key/report", out, tmp_path / "profile", f"--screenshot={out}")
    assert len(Image.open(out).convert("L").getcolors(256) or []) > 20, "more than an empty page"
    if kept := os.environ.get("UI_SCREENSHOT"):
        shutil.copy(out, kept)
