"""Stage reference: features of the real pictures, which every model is compared with."""

from __future__ import annotations

import time
from pathlib import Path

from shift_diffusion.config import load_params
from shift_diffusion.data.store import PreparedData
from shift_diffusion.evaluation.features import Extractor
from shift_diffusion.evaluation.reference import build_reference
from shift_diffusion.runtime import set_up
from shift_diffusion.stage import run_stage
from shift_diffusion.tracking import track_stage


def main() -> None:
    params, out = load_params(), Path("data/reference")
    data = PreparedData.open("data/prepared")
    dataset = {"name": "prepared", "content_hash": data.content_hash, "num_images": len(data), "source": data.source}
    with track_stage("reference", {"evaluate": {"features": params.evaluate.features}}, dataset) as run:
        environment, start = set_up(params.runtime), time.monotonic()
        extractor = Extractor(params.evaluate.features, environment.device, params.evaluate.batch_size)
        build_reference(data, params.train.stage_3.resolution, extractor, out)
        run.log_metrics({"seconds": time.monotonic() - start})
        run.log_artifact(out / "info.json", "reference")


if __name__ == "__main__":
    run_stage(main)
