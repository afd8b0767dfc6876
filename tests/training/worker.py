"""One process of a distributed training, for test_parallel.py: python worker.py PREPARED OUT OVERLAY_JSON."""

import json
import os
import sys
from pathlib import Path

from safetensors.torch import save_file

from shift_diffusion.data.store import PreparedData
from shift_diffusion.models.saving import plain_state
from shift_diffusion.stage import run_stage
from shift_diffusion.training.loop import train
from tests.conftest import merge, tiny_params
from tests.training.conftest import SHORT


def main(prepared: str, out: str, overlay: str) -> None:
    params = tiny_params(merge(SHORT, json.loads(overlay)))
    result = train(1, params, PreparedData.open(prepared), Path(out) / "checkpoints")
    rank = os.environ.get("RANK", "0")
    for name, network in (("averaged", result.averaged), ("raw", result.raw)):
        save_file(plain_state(network), Path(out) / f"{name}-{rank}.safetensors")
    if result.is_main:
        (Path(out) / "metrics.json").write_text(json.dumps(result.metrics))


if __name__ == "__main__":
    run_stage(lambda: main(*sys.argv[1:]))
