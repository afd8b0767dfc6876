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
PICKLE = re.compile(
    r"\b(pickle|cloudpickle|dill|joblib|shelve)\b|torch\.(load|save)\(|np\.load\(|numpy\.load\(|allow_pickle\s*=\s*True"
)
ALLOWED = re.compile(r"np\.load\([^)]*(mmap_mode|allow_pickle\s*=\s*False)")


def sources():
    return [path for room in ("shift_diffusion", "stages", "flows") for path in (ROOT / room).rglob("*.py")]


def code_lines(path: Path):
    """Lines without comments; docstrings may speak of pickle, so only lines that call or import count."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        code = line.split("#")[0]
        if "(" in code or "import" in code.split():
            yield number, code


def test_no_source_reads_or_writes_pickle():
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources()
        for number, code in code_lines(path)
        if PICKLE.search(code)
        and not ALLOWED.search(code)
        and not code.strip().startswith(('"', "'"))
        and not re.search(r"^[^()]*[.:] ", code)
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
    files = [*sources(), ROOT / "Makefile", ROOT / "compose.yaml", ROOT / "prefect.yaml"]
    for path in files:
        if path.is_file():
            text = path.read_text(encoding="utf-8")
            published = re.findall(r"(?m)^\s*-\s*[\"']?(\d+:\d+)", text) if path.name == "compose.yaml" else []
            assert not published, f"{path}: port {published} is published on all interfaces"
            if path.name != "compose.yaml":  # inside a container 0.0.0.0 is the container's own network
                assert "0.0.0.0" not in text, path
