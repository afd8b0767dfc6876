"""The toy pipeline's stages. control.json: {STAGE: {"sleep": s, "exit": code, "kill": bool, "deaf": bool}}.

Each stage counts its steps in .checkpoints/STAGE, so a test sees whether the next run goes on from there.
Its start and end go to times.jsonl.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

STEPS = 100


def wish(stage: str) -> dict:
    path = Path("control.json")
    return json.loads(path.read_text()).get(stage, {}) if path.is_file() else {}


def note(stage: str, event: str, **more) -> None:
    with open("times.jsonl", "a") as file:
        file.write(json.dumps({"stage": stage, "event": event, "time": time.time(), "pid": os.getpid(), **more}) + "\n")


def work(stage: str) -> None:
    """STEPS steps, resumed at the checkpoint; fails in the middle if asked to."""
    asked, checkpoint = wish(stage), Path(".checkpoints") / stage
    checkpoint.parent.mkdir(exist_ok=True)
    first = int(checkpoint.read_text()) if checkpoint.is_file() else 0
    note(stage, "start", step=first)
    if asked.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    for step in range(first, STEPS):
        if step == STEPS // 2 and "exit" in asked:
            print(f"{stage}: the reason it failed")
            sys.exit(asked["exit"])
        if step == STEPS // 2 and asked.get("kill"):
            Path("control.json").unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(asked.get("sleep", 0.2) / STEPS)
        checkpoint.write_text(str(step + 1))
    checkpoint.unlink()
    note(stage, "end")


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def prepare() -> None:
    from shift_diffusion.config import load_params
    from shift_diffusion.data.sources import content_hash

    source_hash = content_hash(load_params().data)
    write("data/prepared.txt", source_hash)
    write("reports/prepare/metrics.json", json.dumps({"source_hash": source_hash}))


def learning_rate() -> float:
    from shift_diffusion.config import load_params

    return load_params().train.stage_1.lr


def evaluate() -> None:
    from PIL import Image

    fid = wish("evaluate").get("fid", 10.5)
    write("reports/evaluate/metrics.json", json.dumps({"fid": fid, "model": Path("models/stage-2.txt").read_text()}))
    Image.new("RGB", (64, 64), "orange").save("reports/evaluate/grid.png")


def register() -> None:
    """The gate in small: lower fid than the champion's wins; the registry is a list in a file."""
    fid = json.loads(Path("reports/evaluate/metrics.json").read_text())["fid"]
    registry = Path("registry.json")
    versions = json.loads(registry.read_text()) if registry.is_file() else []
    better = not versions or fid < min(version["fid"] for version in versions)
    versions.append({"fid": fid})
    write("registry.json", json.dumps(versions))
    decision = {"decision": "promoted" if better else "kept", "reason": f"fid {fid} of {versions}"}
    write("reports/register.json", json.dumps({"version": len(versions), **decision}))


def main(stage: str) -> None:
    work(stage)
    if stage in ("prepare", "evaluate", "register"):
        {"prepare": prepare, "evaluate": evaluate, "register": register}[stage]()
    elif stage == "stage-1":
        write("models/stage-1.txt", Path("data/prepared.txt").read_text() + f" 1 {learning_rate()}")
    elif stage == "stage-2":
        write("models/stage-2.txt", Path("models/stage-1.txt").read_text() + " 2")
    else:
        write("models/int8.txt", Path("models/stage-2.txt").read_text() + " int8")


if __name__ == "__main__":
    main(sys.argv[1])
