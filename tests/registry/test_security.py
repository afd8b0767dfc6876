"""Nothing is unpickled, no server listens to the world, no secret is kept."""

import pickle
import re
import shutil
from pathlib import Path

import pytest
import torch

from shift_diffusion.config import ConfigError
from shift_diffusion.models.saving import load_network
from shift_diffusion.registry.loading import load_model

ROOT = Path(__file__).resolve().parent.parent.parent
READS_PICKLE = re.compile(
    r"\bimport (cloud)?pickle\b|\bfrom (cloud)?pickle\b|pickle\.loads?\(|\b(import|from) (dill|joblib|shelve)\b"
    r"|allow_pickle\s*=\s*True|weights_only\s*=\s*False|torch\.load\((?!.*weights_only\s*=\s*True)|torch\.save\("
)


def test_no_source_reads_or_writes_pickle():
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for room in ("shift_diffusion", "stages", "flows")
        for path in (ROOT / room).rglob("*.py")
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1)
        if READS_PICKLE.search(line)
    ]
    assert not found


class Bomb:
    def __reduce__(self):
        return (Path(bomb_target).touch, ())


bomb_target = "exploded"


@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_a_malicious_checkpoint_is_refused_and_not_run(outs, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(outs / "models" / "stage-3", tmp_path / "model")
    target = tmp_path / "model" / "model.safetensors"
    if kind == "pickle":
        target.write_bytes(pickle.dumps(Bomb()))
    else:
        torch.save({"weight": Bomb()}, target)
    with pytest.raises(ConfigError, match="model.safetensors"):
        load_network(tmp_path / "model")
    with pytest.raises(ConfigError, match="model.safetensors"):
        load_model(str(tmp_path / "model"))
    assert not (tmp_path / bomb_target).exists()


def test_servers_listen_to_this_machine_only():
    files = [
        *(ROOT / "flows").rglob("*.py"),
        *(ROOT / "shift_diffusion").rglob("*.py"),
        ROOT / "Makefile",
        ROOT / "compose.yaml",
        ROOT / "prefect.yaml",
    ]
    for path in files:
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            published = re.findall(r"(?m)^\s*-\s*[\"']?(\d+:\d+)", text) if path.name == "compose.yaml" else []
            assert not published, f"{path}: port {published} is published on all interfaces"
            if path.name != "compose.yaml":  # inside a container 0.0.0.0 is the container's own network
                assert "0.0.0.0" not in text, path
