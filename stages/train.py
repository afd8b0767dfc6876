"""Stage stage-1, stage-2 or stage-3: trains one network, grown from the one before."""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from shift_diffusion.config import PROJECT_ROOT, load_params
from shift_diffusion.data.store import PreparedData
from shift_diffusion.models.saving import load_network
from shift_diffusion.stage import run_stage
from shift_diffusion.tracking import track_stage
from shift_diffusion.training.identity import determining_params
from shift_diffusion.training.launch import start_processes
from shift_diffusion.training.loop import train
from shift_diffusion.training.outputs import save_sheet, write_outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stage", type=int, choices=(1, 2, 3), required=True)
    stage = parser.parse_args().stage
    params, name = load_params(), f"stage-{stage}"
    start_processes(params.runtime, "stages.train")
    data = PreparedData.open("data/prepared")
    init = load_network(f"models/stage-{stage - 1}")[0] if stage > 1 else None
    dataset = {"name": "prepared", "content_hash": data.content_hash, "num_images": len(data), "source": data.source}
    with track_stage(name, determining_params(stage, params), dataset) as run, TemporaryDirectory() as folder:
        watch = {
            "on_metrics": lambda step, values: run.log_metrics(values, step),
            "on_samples": lambda step, pictures: run.log_artifact(save_sheet(pictures, Path(folder), step), "samples"),
        }
        result = train(stage, params, data, PROJECT_ROOT / ".checkpoints", init, **watch)
        if result.is_main:
            write_outputs(result, Path("models") / name, Path("reports") / name)
            run.log_metrics(result.metrics)
            run.log_artifact(Path("reports") / name)


if __name__ == "__main__":
    run_stage(main)
