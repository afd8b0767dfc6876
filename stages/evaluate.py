"""Stage evaluate: scores, checks and pictures of the trained model."""

from __future__ import annotations

import time
from itertools import accumulate
from pathlib import Path

from shift_diffusion.config import load_params
from shift_diffusion.data.store import PreparedData
from shift_diffusion.evaluation.diagnose import as_text, write_diagnosis
from shift_diffusion.evaluation.evaluate import Evaluation
from shift_diffusion.evaluation.reference import Reference
from shift_diffusion.evaluation.stage_fid import fid_against_images, save_fid_against_images, stage_features
from shift_diffusion.files import read_json, write_json
from shift_diffusion.runtime import set_up
from shift_diffusion.sampling import Pipeline
from shift_diffusion.stage import run_stage
from shift_diffusion.tracking import track_stage


def main() -> None:
    params, out = load_params(), Path("reports/evaluate")
    data, reference = PreparedData.open("data/prepared"), Reference.load("data/reference")
    dataset = {"name": "prepared", "content_hash": data.content_hash, "num_images": len(data), "source": data.source}
    with track_stage("evaluate", {"evaluate": params.evaluate, "runtime": params.runtime}, dataset) as run:
        environment, start = set_up(params.runtime), time.monotonic()
        stages = [f"stage-{number}" for number in (1, 2, 3)]
        models = [Pipeline.load(Path("models") / stage, environment.device) for stage in stages]
        seen = accumulate(read_json(Path("reports") / stage / "metrics.json")["images"] for stage in stages)
        with environment.autocast():
            metrics, final = Evaluation(models[-1], params.evaluate, data, reference).run(out)
            earlier = [stage_features(model, params.evaluate, data, reference.resolution) for model in models[:-1]]
        resolutions = [model.resolution for model in models]
        rows = fid_against_images(resolutions, list(seen), [*earlier, final], reference)
        save_fid_against_images(rows, metrics[f"fid_floor_{reference.name}"], reference.name, out)
        write_json(out / "metrics.json", metrics)
        print(as_text(write_diagnosis(out.parent, out)), end="")
        run.log_metrics({"seconds": time.monotonic() - start, **metrics})
        for path in sorted(out.glob("*.*")):
            run.log_artifact(path, "evaluate")


if __name__ == "__main__":
    run_stage(main)
