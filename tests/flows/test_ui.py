"""The Prefect UI of a finished retraining, as a person sees it. UI_SCREENSHOT=docs/retrain.png keeps the picture."""

from __future__ import annotations

import base64
import itertools
import json
import os
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from PIL import Image
from prefect.client.orchestration import get_client

from flows.retrain import retrain
from tests.flows.conftest import wait_until

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One tab of a headless Chromium, through its debugging protocol."""

    def __init__(self, socket):
        self._socket, self._numbers = socket, itertools.count()

    def ask(self, method: str, **parameters) -> dict:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=180))
            if answer.get("id") == number:
                return answer["result"]

    def text(self) -> str:
        script = "document.body ? document.body.innerText : ''"
        return self.ask("Runtime.evaluate", expression=script)["result"].get("value", "")

    def open(self, address: str, *expected: str) -> None:
        """Goes there and waits until all the expected words are on the page."""
        self.ask("Page.navigate", url=address)
        wait_until(lambda: all(word in self.text() for word in expected), timeout=400, what=f"{expected} at {address}")

    def screenshot(self, out: Path) -> None:
        out.write_bytes(base64.b64decode(self.ask("Page.captureScreenshot", format="png")["data"]))


@contextmanager
def browser(profile: Path):
    from websockets.sync.client import connect

    command = [
        BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu",
        "--hide-scrollbars", "--window-size=1200,1500",
        f"--user-data-dir={profile}", "--remote-debugging-port=0", "about:blank",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port_file = profile / "DevToolsActivePort"
        port = wait_until(lambda: port_file.is_file() and port_file.read_text().splitlines()[0], what="the browser")
        tab = next(t for t in httpx.get(f"http://127.0.0.1:{port}/json").json() if t["type"] == "page")
        with connect(tab["webSocketDebuggerUrl"], max_size=2**26, open_timeout=60) as socket:
            yield Page(socket)
    finally:
        process.kill()
        process.wait()


def report_of(flow_run_id) -> str:
    """The id of the run's report."""
    with get_client(sync_client=True) as client:
        body = {"artifacts": {"flow_run_id": {"any_": [str(flow_run_id)]}, "key": {"any_": ["report"]}}}
        return client.request("POST", "/artifacts/filter", json=body).json()[0]["id"]


def look_at(base: str, flow_run_id, profile: Path, out: Path, *stages: str) -> None:
    """Opens the run and its report; one picture: stages and graph above, reason, samples and numbers below."""
    pictures = []
    with browser(profile) as page:
        page.open(f"{base}/runs/flow-run/{flow_run_id}", "Completed", "Task runs", *stages)
        page.screenshot(out)
        pictures.append(Image.open(out).convert("RGB").crop((0, 0, 1200, 900)))
        page.open(f"{base}/artifacts/artifact/{report_of(flow_run_id)}", "Retraining", "Samples", "Metrics", "evaluate")
        has_picture = "document.querySelector('img[alt=samples]')?.naturalWidth || 0"
        shown = lambda: page.ask("Runtime.evaluate", expression=has_picture)["result"]["value"]  # noqa: E731
        wait_until(shown, timeout=120, what="the sample grid")
        page.screenshot(out)
        pictures.append(Image.open(out).convert("RGB"))
    both = Image.new("RGB", (1200, sum(picture.height for picture in pictures)))
    for picture, top in zip(pictures, (0, pictures[0].height), strict=True):
        both.paste(picture, (0, top))
    both.quantize(128).save(out, optimize=True)


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_run_and_report_in_the_browser(project, prefect_url, monkeypatch, tmp_path):
    monkeypatch.chdir(project.root)
    state = retrain(return_state=True)
    assert state.is_completed()
    stages = ("prepare", "stage-1", "stage-2", "evaluate", "quantize", "register")
    out = Path(os.environ.get("UI_SCREENSHOT") or tmp_path / "page.png").resolve()
    look_at(prefect_url.removesuffix("/api"), state.state_details.flow_run_id, tmp_path / "profile", out, *stages)
