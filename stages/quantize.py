"""Stage quantize: int8 variants of the trained network, each measured against it and accounted for layer by layer."""

from __future__ import annotations

import time
from pathlib import Path

from shift_diffusion.config import load_params
from shift_diffusion.data.store import PreparedData
from shift_diffusion.evaluation.reference import Reference
from shift_diffusion.files import write_json
from shift_diffusion.models.saving import load_network
from shift_diffusion.quantization.calibration import calibration_and_held_out
from shift_diffusion.quantization.quantize import Quantization
from shift_diffusion.runtime import set_up
from shift_diffusion.same_seeds import SameSeeds
from shift_diffusion.stage import run_stage
from shift_diffusion.tracking import track_stage

MODEL, OUT, REPORT = Path("models/stage-3"), Path("models/int8"), Path("reports/quantize")


def main() -> None:
    params = load_params()
    data, reference = PreparedData.open("data/prepared"), Reference.load("data/reference")
    sections = {"quantize": params.quantize, "evaluate": params.evaluate, "runtime": params.runtime}
    with track_stage("quantize", sections) as run:
        set_up(params.runtime)
        start = time.monotonic()
        network, config = load_network(MODEL)
        score = SameSeeds(config, params.evaluate, data, reference, params.quantize.num_samples)
        inputs = calibration_and_held_out(data, config, params.quantize)
        work = Quantization(network.requires_grad_(False), config, params.quantize, *inputs, score)
        size = (MODEL / "model.safetensors").stat().st_size
        metrics = work.run(OUT, REPORT / "layers.csv", size, **score.about(), data=data.content_hash)
        write_json(REPORT / "metrics.json", metrics)
        for variant, values in metrics.items():
            run.log_metrics({f"{variant}/{name}": value for name, value in values.items()})
        run.log_metrics({"seconds": time.monotonic() - start})
        run.log_artifact(REPORT / "layers.csv", "quantize")


if __name__ == "__main__":
    run_stage(main)
