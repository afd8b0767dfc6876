"""Where a finished pipeline left what people look for: pictures, metrics, the registered model."""

from __future__ import annotations

from pathlib import Path

from shift_diffusion.files import read_json

_SHOWN = ("fid_", "kid_", "precision_", "recall_", "caption_match", "num_samples")


def main(root: str | Path = ".") -> int:
    """Prints the summary. Returns 1, naming the file, when the pipeline hasn't been finished."""
    root = Path(root)
    needed = [root / "reports/evaluate/metrics.json", root / "reports/register.json"]
    missing = [path for path in needed if not path.exists()]
    if missing:
        print(f"error: {missing[0]} is not there yet; run the pipeline first: dvc repro")
        return 1
    metrics, registered = (read_json(path) for path in needed)
    print("Pictures   reports/evaluate/grid.png, training: reports/stage-*/samples.png")
    shown = {key: value for key, value in metrics.items() if key.startswith(_SHOWN) and not key.endswith("_std")}
    print("Metrics    reports/evaluate/metrics.json: " + ", ".join(f"{k} {v:.4g}" for k, v in shown.items()))
    print(f"Model      {_model_line(registered)}")
    print('Sample     shift-diffusion sample "a woman with red hair and sunglasses" -n 16 --seed 0 -o out/')
    print("History    make ui")
    return 0


def _model_line(registered: dict) -> str:
    alias = "@champion" if registered.get("promoted") else f"/{registered.get('version')}"
    return f"models:/{registered.get('name')}{alias} (version {registered.get('version')}): {registered.get('reason')}"
