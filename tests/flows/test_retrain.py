"""Retraining: only for a reason, with the gate's reason told, and through a DVC remote."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from prefect.client.orchestration import get_client

from flows.news import reasons_of
from flows.retrain import retrain, transfer
from tests.flows.conftest import Project, add_pictures, wait_until

pytestmark = pytest.mark.slow  # real servers and processes: minutes


@pytest.fixture
def here(project, monkeypatch):
    monkeypatch.chdir(project.root)
    return project


def run(**arguments):
    return retrain(return_state=True, **arguments)


def registered(project) -> list:
    return json.loads((project.root / "registry.json").read_text())


def test_unchanged_then_new_data_better_then_worse(here):
    """Case 39: new pictures under the same parameters mean new work; nothing new means none."""
    first = run()
    assert first.is_completed()
    assert first.message.startswith("promoted: new version 1")
    ran = len(here.ran())

    assert run().name == "Unchanged"
    assert (len(here.ran()), len(registered(here))) == (ran, 1), "no stage ran, no version was made"

    add_pictures(here.root, 50)
    here.control(evaluate={"fid": 9.0})
    better = run()
    assert better.message.startswith("promoted: new version 2: fid 9.0")
    assert "data: the source holds other pictures" in better.message

    here.control(evaluate={"fid": 99.0})
    worse = run(set_params=["train.stage-1.lr=2e-4"])
    assert worse.message.startswith("kept: new version 3"), worse.message
    assert "parameters: train.stage-1" in worse.message


def test_new_code_is_a_reason(here):
    run()
    (here.root / "toy.py").write_text((here.root / "toy.py").read_text() + "\n# another version\n")
    assert "changed: toy.py" in run().message


def test_reasons_are_short_and_without_consequences():
    status = {
        "train": [
            "changed command",
            {
                "changed deps": {
                    "a.py": "modified",
                    "data": "deleted",
                    "params.yaml": {"train": "modified", "train.lr": "modified"},
                }
            },
        ],
        "prepare": [{"changed outs": {"data": "deleted"}}],
        "new": [{"changed deps": {"params.yaml": "new"}}],
        "many": [{"changed deps": {f"{letter}.py": "modified" for letter in "bcdefgh"}}],
    }
    assert reasons_of(status) == [
        "parameters: train.lr",
        "changed: a.py, b.py, c.py, d.py, e.py, f.py and 2 more",
        "commands: train",
        "missing outs: data",
    ]


def test_a_failed_stage_fails_the_retraining(here):
    here.control(quantize={"exit": 1})
    state = run()
    assert state.is_failed()
    assert "quantize: the reason it failed" in state.message
    assert "register" not in here.ran(), "what didn't pass isn't registered"


def test_the_report_holds_reason_numbers_and_pictures(here):
    state = run()
    with get_client(sync_client=True) as client:
        run_id = state.state_details.flow_run_id
        body = {"artifacts": {"flow_run_id": {"any_": [str(run_id)]}}}
        artifacts = client.request("POST", "/artifacts/filter", json=body).json()
    text = next(artifact for artifact in artifacts if artifact["key"] == "report")["data"]
    assert "promoted: new version 1" in text
    assert "| evaluate | fid | 10.5 |" in text
    assert "data:image/jpeg;base64," in text


def test_notification_is_sent_when_asked_for(here):
    """Off by default; a webhook block tells the outcome; an unknown block changes nothing."""
    from prefect.blocks.notifications import CustomWebhookNotificationBlock

    received = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}/"
    hook = CustomWebhookNotificationBlock(name="hook", url=address, json_data={"text": "{{subject}}: {{body}}"})
    hook.save("team", overwrite=True)
    assert run().is_completed()
    assert received == []
    assert run(notify="custom-webhook/team").name == "Unchanged"
    server.shutdown()
    assert "retrain: Unchanged" in received[0]["text"]
    assert run(notify="custom-webhook/nobody").name == "Unchanged"


def clone(here, folder, monkeypatch) -> Project:
    """What a second host has: the repository and the DVC remote, no outs, no cache."""
    subprocess.run(["git", "add", "-A"], cwd=here.root, check=True)
    author = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    subprocess.run(["git", *author, "commit", "-qm", "trained"], cwd=here.root, check=True)
    subprocess.run(["git", "clone", "-q", str(here.root), str(folder)], check=True)
    for name in ("times.jsonl", "registry.json"):
        (folder / name).unlink(missing_ok=True)
    assert not (folder / "models/stage-2.txt").exists()
    monkeypatch.chdir(folder)
    return Project(folder, here.env)


def test_second_host_reproduces_nothing_that_is_in_the_remote(here, tmp_path, monkeypatch):
    here.dvc("remote", "add", "-d", "shared", str(tmp_path / "remote"))
    assert run().is_completed()
    other = clone(here, tmp_path / "other", monkeypatch)
    assert run().name == "Unchanged"
    assert other.ran() == []
    assert (other.root / "models/stage-2.txt").read_bytes() == (here.root / "models/stage-2.txt").read_bytes()


def test_an_unreachable_remote_fails_the_flow(here, monkeypatch):
    here.dvc("remote", "add", "-d", "shared", "/proc/nowhere")
    monkeypatch.setattr(sys.modules["flows.retrain"], "transfer", transfer.with_options(retries=0))
    state = run()
    assert state.is_failed()
    assert "dvc push" in state.message
    assert run(remote=False).is_completed(), "the work itself is kept"


@pytest.mark.slow
def test_s3_remote(here, tmp_path, monkeypatch):
    """An S3-compatible store on localhost as the DVC remote: push from one host, pull to another."""
    pytest.importorskip("dvc_s3")
    pytest.importorskip("moto.server")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        address = f"http://127.0.0.1:{port}"
        for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(key, "testing")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        import boto3
        import httpx

        def answers() -> bool:
            try:
                return httpx.get(address).status_code < 500
            except httpx.HTTPError:
                return False

        wait_until(answers)
        boto3.client("s3", endpoint_url=address).create_bucket(Bucket="dvc")
        here.dvc("remote", "add", "-d", "shared", "s3://dvc/store")
        here.dvc("remote", "modify", "shared", "endpointurl", address)
        state = run()
        assert state.is_completed(), state.message
        shutil.rmtree(here.root / ".dvc/cache")
        other = clone(here, tmp_path / "other", monkeypatch)
        assert run().name == "Unchanged"
        assert other.ran() == []
    finally:
        store.kill()
        store.wait()
