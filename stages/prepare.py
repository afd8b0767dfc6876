"""Stage prepare: any pictures to data/prepared, a report and a sheet of some of them."""

from __future__ import annotations

import time
from pathlib import Path

from shift_diffusion.stage import run_stage


def main() -> None:
    # inside: worker processes import this module again, and need none of it
    from shift_diffusion.config import load_params
    from shift_diffusion.data.prepare import prepare_data, summary
    from shift_diffusion.data.sheet import contact_sheet
    from shift_diffusion.data.store import PreparedData
    from shift_diffusion.files import write_json
    from shift_diffusion.pictures import save_png
    from shift_diffusion.tracking import track_stage

    params, out, reports = load_params(), Path("data/prepared"), Path("reports/prepare")
    resolutions = [stage.resolution for stage in params.train.stages]
    sections = {"data": params.data.model_dump(), "text": params.text.model_dump(), "resolutions": resolutions}
    with track_stage("prepare", sections) as run:
        start = time.monotonic()
        report = prepare_data(params.data, params.text, resolutions, out, Path(".cache"))
        print(summary(report))
        run.log_metrics({"seconds": time.monotonic() - start, **report.pop("run")})
        prepared = PreparedData.open(out)
        save_png(contact_sheet(prepared), reports / "contact_sheet.png")
        write_json(reports / "metrics.json", report)
        run.log_dataset("prepared", prepared.content_hash, len(prepared), prepared.source)
        run.log_artifact(reports / "metrics.json", "prepare")
        run.log_artifact(reports / "contact_sheet.png", "prepare")


if __name__ == "__main__":
    run_stage(main)
