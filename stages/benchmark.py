"""Stage benchmark: every variant of the model, timed in a process of its own."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

from shift_diffusion.benchmark import Benchmarking, as_table, draw_chart, flat
from shift_diffusion.config import load_params
from shift_diffusion.files import write_json
from shift_diffusion.runtime import set_up
from shift_diffusion.same_seeds import bfloat16_scores
from shift_diffusion.stage import run_stage
from shift_diffusion.tracking import track_stage

MODEL, OUT = "models/stage-3", Path("reports/benchmark")


def main() -> None:
    params = load_params()
    sections = {"benchmark": params.benchmark, "runtime": params.runtime, "evaluate": params.evaluate}
    with track_stage("benchmark", sections) as run:
        environment, start = set_up(params.runtime), time.monotonic()
        bfloat16 = partial(bfloat16_scores, MODEL, params.evaluate, "data/prepared", "data/reference")
        found = Benchmarking(MODEL, "models/int8", params.benchmark, params.runtime, bfloat16).run(environment)
        write_json(OUT / "metrics.json", found)
        draw_chart(found, OUT / "chart.png")
        print(as_table(found), end="")
        run.log_metrics({"seconds": time.monotonic() - start, **flat(found)})
        run.log_artifact(OUT / "chart.png", "benchmark")


if __name__ == "__main__":
    run_stage(main)
