"""The page of a run: whole, safe against odd text, and right in a real browser at the width of a phone."""

import json
import shutil
import subprocess

import pytest
import torch
import yaml

from shift_diffusion.config import ConfigError
from shift_diffusion.evaluation.report import write_report
from shift_diffusion.files import write_json
from shift_diffusion.pictures import grid, save_png

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


@pytest.fixture
def project(tmp_path):
    reports, rng = tmp_path / "reports", torch.Generator().manual_seed(0)
    pictures = torch.randint(0, 256, (12, 3, 64, 64), generator=rng, dtype=torch.uint8)
    for name in ("evaluate/grid.png", "evaluate/trajectory.png", "stage-1/curves.png"):
        save_png(grid(pictures, columns=6, scale=2, labels=["a prompt <b>with</b> a few words"] * 12), reports / name)
    scores = {"fid_x": 12.5, "fid_x_std": 0.5, "fid_floor_x": 3.0, "num_samples": 32, "num_seeds": 2}
    scores |= {"psnr": 21.5, "psnr_log_snr_0": 20.0, "kid_subset_size": 16}
    write_json(reports / "evaluate/metrics.json", scores)
    finding = {"symptom": "loss <explodes>", "evidence": "loss 9 & rising", "change": "train.stage-1.lr: 1e-05"}
    write_json(reports / "evaluate/diagnosis.json", [finding])
    (tmp_path / "params.yaml").write_text("seed: 0 # <script>alert(1)</script>\n")
    stage = {"cmd": "x", "deps": [{"path": "a" * 80, "md5": "0a1b2c3d4e"}], "outs": [{"path": "models", "md5": "ab"}]}
    (tmp_path / "dvc.lock").write_text(yaml.safe_dump({"schema": "2.0", "stages": {"evaluate": stage}}))
    return tmp_path


def test_the_page_holds_pictures_numbers_parameters_and_lineage(project):
    page = write_report(project, project / "out" / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == 3
    for text in (
        "12.5 ± 0.5",
        "real pictures 3",
        "0a1b2c3d",
        "train.stage-1.lr: 1e-05",
        "loss &lt;explodes&gt;",
        "seed: 0",
    ):
        assert text in page
    assert page.count('class="card"') == 2
    assert page.count("real pictures") == 1
    assert "<script" not in page
    assert "http:" not in page
    assert "https:" not in page


def test_a_project_without_reports_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="dvc repro"):
        write_report(tmp_path, tmp_path / "report.html")


PROBE = """<script>
window.addEventListener("load", () => {
  const images = [...document.images].map(image => image.naturalWidth);
  const found = {images, wide: document.documentElement.scrollWidth, window: innerWidth,
    font: parseFloat(getComputedStyle(document.body).fontSize)};
  document.body.textContent = "PROBE" + JSON.stringify(found) + "END";
});
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
def test_in_a_browser_pictures_load_nothing_is_logged_and_a_phone_needs_no_sideways_scrolling(project):
    page = write_report(project, project / "report.html")
    framed = project / "phone.html"  # headless Chromium has a least window width: a frame is as narrow as a phone
    inner = page.read_text(encoding="utf-8").replace("</body>", PROBE)
    (project / "probed.html").write_text(inner, encoding="utf-8")
    framed.write_text(
        '<iframe src="probed.html" style="width:390px;height:800px;border:0"></iframe><script>'
        "addEventListener('load', () => { document.body.append(frames[0].document.body.textContent) })</script>"
    )
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += ["--enable-logging=stderr", "--log-level=0", "--virtual-time-budget=5000", "--dump-dom", framed.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    found = json.loads(done.stdout.split("PROBE")[1].split("END")[0])
    assert len(found["images"]) == 3
    assert all(found["images"])
    assert found["window"] == 390
    assert found["wide"] <= 390
    assert found["font"] >= 16
