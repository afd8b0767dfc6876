"""Kills the smoke pipeline with SIGKILL at many moments and compares what `dvc repro` then makes of it, byte for byte.

    python -m tests.chaos --kills 20        (make chaos)

For every kill a fresh clone: start `dvc repro`, wait for the moment, kill the whole process group, run `dvc repro` to
the end, compare every file of the models and reports, and dvc.lock, with a run that nobody disturbed. Up to `evaluate`
and `quantize`: what comes after them holds times and run ids, which are never twice the same.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.smoke_project import environment, make_clone, run

TARGETS = ("evaluate", "quantize")
COMPARED = ("dvc.lock", "models", "reports", "data/prepared", "data/reference")
_RUNNING = re.compile(r"Running stage '([^']+)'")


class Repro:
    """A running `dvc repro` as a process group of its own."""

    def __init__(self, folder: Path, targets: Sequence[str] = TARGETS):
        self.folder, self.log = folder, folder.parent / f"{folder.name}.log"
        self._out = self.log.open("w")
        self.process = subprocess.Popen(
            ["dvc", "repro", *targets],
            cwd=folder,
            env=environment(),
            stdout=self._out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.start = time.monotonic()

    @property
    def started(self) -> list[str]:
        """Stages that have begun, in order."""
        return _RUNNING.findall(self.log.read_text(errors="replace"))

    def wait_until(self, moment: Callable[[Repro], bool], timeout: float = 900) -> bool:
        """False when the pipeline was done before the moment came."""
        while self.process.poll() is None:
            if moment(self):
                return True
            if time.monotonic() - self.start > timeout:
                raise TimeoutError(f"{self.log}: the moment didn't come")
            time.sleep(0.002)
        return False

    def kill(self, signum: int = signal.SIGKILL) -> int:
        """The signal to the whole group, as a terminal sends Ctrl-C; returns the exit code."""
        os.killpg(self.process.pid, signum)
        self.process.wait()
        self._out.close()
        return self.process.returncode


def at(seconds: float) -> Callable[[Repro], bool]:
    return lambda repro: time.monotonic() - repro.start > seconds


def in_stage(name: str, delay: float) -> Callable[[Repro], bool]:
    """`delay` seconds after a stage has begun."""
    begun: list[float] = []

    def moment(repro: Repro) -> bool:
        if not begun and name in repro.started:
            begun.append(time.monotonic())
        return bool(begun) and time.monotonic() - begun[0] > delay

    return moment


def recorded_in(name: str) -> Callable[[Repro], bool]:
    """Once a stage's run is open: from here on MLflow must hear of its end."""
    return lambda repro: "recording in" in repro.log.read_text(errors="replace").partition(f"Running stage '{name}'")[2]


def writing_checkpoint(number: int) -> Callable[[Repro], bool]:
    """While a checkpoint is half written, the `number`-th that is seen so."""
    seen: set[Path] = set()

    def moment(repro: Repro) -> bool:
        seen.update((repro.folder / ".checkpoints").glob("*/.writing-*"))
        return len(seen) >= number

    return moment


def moments(count: int, seed: int, duration: float) -> list[tuple[str, Callable[[Repro], bool]]]:
    """A third at random times, the rest inside prepare, the training stages, checkpoint writes and evaluate."""
    generator, chosen = random.Random(seed), []
    for index in range(count):
        delay = generator.uniform(0, 5)
        name = generator.choice(("stage-1", "stage-2", "stage-3"))
        at_time, number = generator.uniform(1, duration), generator.randint(1, 12)
        chosen.append(
            [
                (f"after {at_time:.1f} s", at(at_time)),
                (f"{delay:.1f} s into {name}", in_stage(name, delay)),
                (f"writing checkpoint {number}", writing_checkpoint(number)),
                (f"{delay:.1f} s into prepare", in_stage("prepare", delay)),
                (f"after {at_time:.1f} s", at(at_time)),
                (f"{delay:.1f} s into evaluate", in_stage("evaluate", delay)),
            ][index % 6]
        )
    return chosen


def contents(folder: Path) -> dict[str, bytes]:
    """Every compared file, by relative path."""
    files = [p for name in COMPARED for p in [folder / name, *(folder / name).rglob("*")] if p.is_file()]
    return {str(p.relative_to(folder)): p.read_bytes() for p in files}


def differences(expected: dict[str, bytes], found: dict[str, bytes]) -> list[str]:
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))


def finished_stages(folder: Path) -> set[str]:
    """Stages that dvc.lock records, before the second run."""
    lock = folder / "dvc.lock"
    return set(re.findall(r"^  ([a-z0-9-]+):$", lock.read_text(), re.MULTILINE)) if lock.exists() else set()


def clone(origin: Path, folder: Path) -> Path:
    """What `origin` has committed: edits of the project while this runs make no difference."""
    subprocess.run(["git", "clone", "-q", str(origin), str(folder)], check=True)
    return folder


def kill_once(origin: Path, folder: Path, moment: Callable[[Repro], bool], expected: dict[str, bytes]) -> list[str]:
    """Problems of one killed and repeated run of a clone; none when all is as in the undisturbed one."""
    clone(origin, folder)
    repro = Repro(folder)
    repro.wait_until(moment)
    repro.kill()
    done, killed_in = finished_stages(folder), (repro.started or ["nothing yet"])[-1]
    saved = sorted((folder / ".checkpoints").glob(f"{killed_in}-*/step-*"))
    second = run(folder, "dvc", "repro", *TARGETS)
    problems = [f"differs: {name}" for name in differences(expected, contents(folder))]
    problems += [f"repeated: {name}" for name in _RUNNING.findall(second.stdout) if name in done]
    if saved and killed_in not in done and "resumed from" not in second.stdout:
        problems.append(f"{killed_in} had {saved[-1].name}, but began anew")
    problems += [f"left behind: {p}" for p in (folder / ".checkpoints").glob("*/.writing-*")]
    print(
        f"  killed in {killed_in}, {len(done)} stages done, {saved[-1].name if saved else 'no checkpoint'}", flush=True
    )
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        origin = make_clone(Path(temporary) / "origin")
        undisturbed, start = clone(origin, Path(temporary) / "undisturbed"), time.monotonic()
        run(undisturbed, "dvc", "repro", *TARGETS)
        duration = time.monotonic() - start
        expected = contents(undisturbed)
        print(f"undisturbed: {duration:.0f} s, {len(expected)} files", flush=True)
        good = 0
        for number, (description, moment) in enumerate(moments(arguments.kills, arguments.seed, duration), start=1):
            print(f"kill {number} of {arguments.kills}: {description}", flush=True)
            folder = Path(temporary) / f"killed-{number}"
            problems = kill_once(origin, folder, moment, expected)
            good += not problems
            print("\n".join(f"  {problem}" for problem in problems) or "  identical", flush=True)
            shutil.rmtree(folder)
    print(f"{good} of {arguments.kills} kills ended in the bytes of the undisturbed run")
    sys.exit(good != arguments.kills)


if __name__ == "__main__":
    main()
