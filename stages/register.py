"""DVC stage `register`: the trained model becomes a version of the registry and challenges the champion."""

import sys
from pathlib import Path

from shift_diffusion.config import load_params
from shift_diffusion.files import read_json, write_json
from shift_diffusion.registry.measured import conditions, numbers
from shift_diffusion.registry.registering import register_outs
from shift_diffusion.stage import run_stage
from shift_diffusion.tracking import TrackingError, track_stage

MODEL, INT8, REFERENCE = Path("models/stage-3"), Path("models/int8"), Path("data/reference")
OUT = Path("reports/register.json")


def main() -> None:
    params = load_params()
    section, evaluate = params.register_, params.evaluate
    evaluation = read_json("reports/evaluate/metrics.json")
    measured = numbers(evaluation, read_json("reports/benchmark/metrics.json"))
    known = conditions(evaluate, evaluation, REFERENCE, MODEL)
    with track_stage("register", {"register": section, "evaluate": evaluate}) as run:
        try:
            outcome = register_outs(run, MODEL, INT8, section, evaluate, measured, known)
        except TrackingError as error:
            sys.exit(f"error: the model was not registered: {error}")
        write_json(OUT, outcome)
        run.log_artifact(OUT)
    print(f"{outcome['model']}: {outcome['decision']}: {outcome['reason']}")


if __name__ == "__main__":
    run_stage(main)
