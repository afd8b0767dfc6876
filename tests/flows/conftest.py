"""A toy DVC project per test, a real Prefect server per session, and flows as real processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
TOY = Path(__file__).parent / "toy"
OFFLINE = {"DVC_NO_ANALYTICS": "true", "DVC_TEST": "true", "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return {**os.environ, **OFFLINE, "PATH": path, "PYTHONPATH": str(ROOT), **more}


@dataclass
class Project:
    """A DVC project with helpers to run things in it and to read what its stages noted."""

    root: Path
    env: dict[str, str]

    def control(self, **stages: dict) -> None:
        content = {name.replace("_", "-"): wish for name, wish in stages.items()}
        (self.root / "control.json").write_text(json.dumps(content))

    def times(self, event: str | None = None) -> list[dict]:
        path = self.root / "times.jsonl"
        notes = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
        return [note for note in notes if event in (None, note["event"])]

    def ran(self) -> list[str]:
        return [note["stage"] for note in self.times("start")]

    def forget_times(self) -> None:
        (self.root / "times.jsonl").unlink(missing_ok=True)

    def run(self, *command: str, timeout: float = 300) -> subprocess.CompletedProcess:
        return subprocess.run(command, cwd=self.root, env=self.env, capture_output=True, text=True, timeout=timeout)

    def dvc(self, *arguments: str) -> subprocess.CompletedProcess:
        return self.run(sys.executable, "-m", "dvc", *arguments)

    def flow(self, module: str, *arguments: str) -> subprocess.CompletedProcess:
        return self.run(sys.executable, "-m", f"flows.{module}", *arguments)

    def start_flow(self, module: str, *arguments: str) -> subprocess.Popen:
        with open(self.root / "flow.log", "ab") as log:
            command = [sys.executable, "-m", f"flows.{module}", *arguments]
            return subprocess.Popen(
                command, cwd=self.root, env=self.env, stdout=log, stderr=log, start_new_session=True
            )

    def log(self) -> str:
        return (self.root / "flow.log").read_text()

    def wait_for(self, stage: str, event: str = "start", timeout: float = 180) -> dict:
        """Waits until the stage notes the event; returns the note."""

        def found() -> dict | None:
            return next((note for note in self.times(event) if note["stage"] == stage), None)

        return wait_until(found, timeout, what=f"{stage} {event}; log:\n{self._log_or_nothing()}")

    def _log_or_nothing(self) -> str:
        return self.log() if (self.root / "flow.log").is_file() else ""

    def processes(self) -> list[psutil.Process]:
        """Everything that still runs in this project's folder."""
        others = (process for process in psutil.process_iter() if process.pid != os.getpid())
        return [process for process in others if _works_in(process, self.root)]


def _works_in(process: psutil.Process, folder: Path) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE and Path(process.cwd()).is_relative_to(folder)
    except (psutil.Error, OSError):
        return False


def wait_until(condition, timeout: float = 120, what: str = "the condition"):
    """Polls until the condition gives something true, and returns that."""
    end = time.monotonic() + timeout
    while time.monotonic() < end:
        if result := condition():
            return result
        time.sleep(0.1)
    raise AssertionError(f"not within {timeout} s: {what}")


@pytest.fixture(scope="session")
def prefect_url(tmp_path_factory) -> str:
    """A real Prefect server on localhost, for the session."""
    from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

    from flows.server import prefect_api

    home = tmp_path_factory.mktemp("prefect")
    with temporary_settings({PREFECT_HOME: home}, restore_defaults={PREFECT_API_URL}):
        with prefect_api() as url:
            yield url


@pytest.fixture(scope="session")
def toy_template(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("template") / "toy"
    root.mkdir()
    shutil.copy(TOY / "toy.py", root)
    shutil.copy(TOY / "pipeline.yaml", root / "dvc.yaml")  # under another name, or it'd be part of this project's DAG
    params = (ROOT / "params.yaml").read_text()
    params = params.replace("source: avatars", "source: folder").replace("path: data/raw", "path: PICTURES", 1)
    (root / "params.yaml").write_text(params)
    add_pictures(root, 3)
    for command in (["git", "init", "-q"], [sys.executable, "-m", "dvc", "init", "-q"]):
        subprocess.run(command, cwd=root, env=environment(), check=True)
    return root


@pytest.fixture
def toy(toy_template, tmp_path, monkeypatch) -> Project:
    """A fresh toy project without a Prefect address: flows in it would start their own server."""
    root = tmp_path / "toy"
    shutil.copytree(toy_template, root, symlinks=True)
    params = (root / "params.yaml").read_text().replace("path: PICTURES", f"path: {root}/pictures")
    (root / "params.yaml").write_text(params)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for stages of flows that run in the test's own process
    project = Project(root, environment(PREFECT_HOME=str(tmp_path / "prefect-home")))
    yield project
    for process in project.processes():
        process.send_signal(signal.SIGKILL)


@pytest.fixture
def project(toy, prefect_url) -> Project:
    """The toy project, its flows talking to the session's server."""
    toy.env["PREFECT_API_URL"] = prefect_url
    return toy


def add_pictures(root: Path, count: int) -> None:
    folder = root / "pictures"
    folder.mkdir(exist_ok=True)
    start = len(list(folder.iterdir()))
    for index in range(start, start + count):
        Image.new("RGB", (16, 16), (index * 40 % 256, 90, 200)).save(folder / f"{index:03}.png")
