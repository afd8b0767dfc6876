"""What tracking costs a training stage: the same stage with and without it, alternating.

    python -m benchmarks.tracking [--steps 300] [--repeats 3]

Trains stage 1 of the smoke configuration (log interval 5: four times as often as the default) in a temporary project
with its own SQLite store. Prints wall and processor time of both ways, the price of one call, and the fixed cost of a
run: most of it is the import of MLflow, in a thread beside the training.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CHILD = """
import json, os, resource, sys, time
from pathlib import Path
from shift_diffusion.config import load_params
from shift_diffusion.data.store import PreparedData
from shift_diffusion.tracking import track_stage
from shift_diffusion.training.loop import train
params, data = load_params(), PreparedData.open("data/prepared")
start = time.perf_counter()
with track_stage("stage-1", params) as run:
    entered = time.perf_counter()
    calls = [0, 0.0]
    def on_metrics(step, values):
        before = time.perf_counter()
        run.log_metrics(values, step)
        calls[0] += 1
        calls[1] += time.perf_counter() - before
    train(1, params, data, Path(sys.argv[1]), on_metrics=on_metrics)
    left = time.perf_counter()
end = time.perf_counter()
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({"enter": entered - start, "train": left - entered, "leave": end - left, "wall": end - start,
                  "cpu": used.ru_utime + used.ru_stime, "call": calls[1] / max(calls[0], 1), "calls": calls[0]}))
"""


def prepare(folder: Path, steps: int) -> None:
    """A project with the smoke parameters, `steps` optimizer steps in stage 1, and its prepared data."""
    import yaml

    from shift_diffusion.config import load_params, read_yaml
    from shift_diffusion.data.prepare import prepare_data

    content = read_yaml(ROOT / "params.yaml")
    for section, values in read_yaml(ROOT / "tests" / "smoke.yaml").items():
        for key, value in values.items():
            merged = {**content[section][key], **value} if isinstance(value, dict) else value
            content[section][key] = merged
    content["train"]["stage-1"]["images"] = steps * content["train"]["stage-1"]["batch_size"]
    content["train"]["cadence"] |= {"validate": 10 * steps, "checkpoint": 10 * steps}
    (folder / "params.yaml").write_text(yaml.safe_dump(content))
    (folder / "dvc.yaml").write_text((ROOT / "dvc.yaml").read_text())
    params = load_params(folder / "params.yaml")
    prepare_data(params.data, params.text, [s.resolution for s in params.train.stages], folder / "data" / "prepared")


def measure(folder: Path, tracked: bool, number: int) -> dict[str, float]:
    import json

    env = {**os.environ, "PYTHONPATH": str(ROOT), "SHIFT_DIFFUSION_TRACKING": "on" if tracked else "off"}
    env.pop("MLFLOW_TRACKING_URI", None)
    command = [sys.executable, "-c", CHILD, f"checkpoints-{tracked}-{number}"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    found: dict[bool, list[dict]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        prepare(folder, options.steps)
        measure(folder, True, -1)  # the first start makes the database
        for number in range(options.repeats):
            for tracked in (False, True):
                found[tracked].append(measure(folder, tracked, number))
                print(".", end="", flush=True)
    print()
    report(found)
    return 0


def report(found: dict[bool, list[dict]]) -> None:
    middle = {t: {k: statistics.median(m[k] for m in runs) for k in runs[0]} for t, runs in found.items()}
    print(f"{'':12}{'enter s':>9}{'train s':>9}{'leave s':>9}{'wall s':>9}{'cpu s':>9}")
    for tracked, name in ((False, "untracked"), (True, "tracked")):
        m = middle[tracked]
        print(f"{name:12}{m['enter']:9.2f}{m['train']:9.2f}{m['leave']:9.2f}{m['wall']:9.2f}{m['cpu']:9.2f}")
    spread = [max(m["train"] for m in runs) - min(m["train"] for m in runs) for runs in found.values()]
    print(f"spread of the training time: {max(spread):.2f} s over {len(found[True])} repeats each")
    extra = middle[True]["wall"] - middle[False]["wall"]
    print(f"one call of log_metrics: {1e6 * middle[True]['call']:.0f} microseconds; {middle[True]['calls']:.0f} calls")
    print(f"overhead here: {extra:.2f} s, {100 * extra / middle[False]['wall']:.1f} % of {middle[False]['wall']:.0f} s")
    print(f"of a stage of 4 minutes: {100 * extra / 240:.2f} %")


if __name__ == "__main__":
    start = time.monotonic()
    code = main()
    print(f"({time.monotonic() - start:.0f} s)")
    sys.exit(code)
