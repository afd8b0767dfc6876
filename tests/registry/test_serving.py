"""The champion in other hands: an empty folder, a new process, a REST request."""

import base64
import io
import json
import os
import subprocess
import sys
import urllib.request

import pytest
from PIL import Image

from shift_diffusion.models.saving import load_network
from shift_diffusion.quantization import weight_int8
from shift_diffusion.quantization.saving import save_quantized
from shift_diffusion.registry.registering import register_model
from tests.registry.registry_builder import DEFAULTS
from tests.tracking.servers import free_port, wait_for_page

LOAD = """
import hashlib, mlflow, pandas, sys
model = mlflow.pyfunc.load_model("models:/shift-diffusion@champion")
for variant in ("float32", "weight_int8"):
    out = model.predict(pandas.DataFrame({"seed": [1, 2]}), params={"num_steps": 2, "variant": variant})
    print([hashlib.sha256(picture).hexdigest() for picture in out["picture"]])
"""


@pytest.fixture
def champion(store, outs, tmp_path):
    network, config = load_network(outs / "models" / "stage-3")
    save_quantized(tmp_path / "int8", "weight_int8", weight_int8.convert(network, []), config)
    run_id = store.client.create_run(store.experiment_id).info.run_id
    options = {"name": "shift-diffusion", "metric": "fid", "metrics": {"fid": 1.0}, "conditions": {}}
    register_model(store, run_id, outs / "models" / "stage-3", tmp_path / "int8", defaults=DEFAULTS, **options)
    return store


def environment(store) -> dict[str, str]:
    return {
        **os.environ,
        "MLFLOW_TRACKING_URI": store.uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.mark.slow
def test_new_process_in_an_empty_folder(champion, tmp_path):
    said = []
    for name in ("one", "other"):
        folder = tmp_path / name
        folder.mkdir()
        command = [sys.executable, "-c", LOAD]
        done = subprocess.run(
            command, cwd=folder, env=environment(champion), capture_output=True, text=True, check=True
        )
        said.append(done.stdout.splitlines()[-2:])
        assert not list(folder.iterdir()), "loading a model leaves nothing behind"
    assert said[0] == said[1]
    assert said[0][0] != said[0][1], "the int8 variant is another network"


@pytest.mark.slow
def test_rest_request_is_answered_with_pictures(champion, tmp_path):
    port = free_port()
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", "models:/shift-diffusion@champion"]
    command += ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)]
    log = open(tmp_path / "log", "wb")  # noqa: SIM115 - the process keeps it
    server = subprocess.Popen(
        command, cwd=tmp_path, env=environment(champion), stdout=log, stderr=log, start_new_session=True
    )
    try:
        wait_for_page(f"http://127.0.0.1:{port}/ping", server)
        body = {"dataframe_records": [{"prompt": "", "seed": 1}, {"prompt": "a face", "seed": 2}]}
        body["params"] = {"num_steps": 2, "sampler": "euler", "guidance_scale": 2.0}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/invocations", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        answer = json.load(urllib.request.urlopen(request, timeout=120))["predictions"]
        assert [row["seed"] for row in answer] == [1, 2]
        images = [Image.open(io.BytesIO(base64.b64decode(row["picture"]))) for row in answer]
        assert [image.size for image in images] == [(32, 32)] * 2
        assert images[1].text["prompt"] == "a face"
    finally:
        os.killpg(server.pid, 9)
        server.wait()
