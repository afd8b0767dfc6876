"""Builds what the registry works on; run as a script it writes the committed bundle of format version 1.

python tests/registry/registry_builder.py tests/registry/fixtures/bundle-1
"""

import sys
import tempfile
from pathlib import Path

import torch

from shift_diffusion.config import Params, parse_params, read_yaml
from shift_diffusion.files import write_json
from shift_diffusion.models.saving import save_network
from shift_diffusion.models.unet import build_network, network_config
from shift_diffusion.serving.bundle import write_bundle

DEFAULTS = {"sampler": "dpmpp_2m", "num_steps": 2, "guidance_scale": 1.5, "spacing": "uniform"}
ROOT = Path(__file__).resolve().parent.parent.parent


def small_params() -> Params:
    """params.yaml with the smallest network that has all kinds of parts, at 8, 16 and 32 pixels."""
    content = read_yaml(ROOT / "params.yaml")
    level = {"width": 8, "patch": 1, "num_blocks": 1}
    content["model"] |= {"widths": [8, 8], "outer": [level, {**level, "patch": 2}], "embedding_dim": 16, "head_dim": 8}
    for number, resolution in enumerate((8, 16, 32), start=1):
        content["train"][f"stage-{number}"]["resolution"] = resolution
    return parse_params(content)


def build_network_folder(folder: Path, seed: int) -> None:
    """A stage-3 network with random weights, no layer of it at zero, so that a lost weight changes the picture."""
    params = small_params()
    torch.manual_seed(seed)
    network = build_network(params, 3)
    with torch.no_grad():
        for weight in network.parameters():
            weight.add_(0.02 * torch.randn_like(weight))
    config = {
        "network": network_config(params, 3),
        "process": {"name": "flow", "timestep_shift": 4.0, "prediction": "velocity"},
        "text": params.text.model_dump(),
        "resolution": params.train.stage_3.resolution,
    }
    save_network(folder, network, config)


def build_outs(folder: Path, seed: int, fid: float = 100.0) -> None:
    """models/stage-3, data/reference, reports/evaluate and reports/benchmark as the pipeline leaves them."""
    build_network_folder(folder / "models" / "stage-3", seed)
    write_json(folder / "data" / "reference" / "info.json", {"content_hash": "0" * 64})
    write_json(folder / "reports" / "evaluate" / "metrics.json", {"fid_efficientnet_lite0": fid, "num_samples": 32})
    write_json(folder / "reports" / "benchmark" / "metrics.json", {"float32": {"latency_ms": {"batch1": 3.5}}})


if __name__ == "__main__":
    out = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as network:
        build_network_folder(Path(network), seed=0)
        write_bundle(out, Path(network), None, DEFAULTS, "fixture")
