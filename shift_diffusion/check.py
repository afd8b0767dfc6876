"""Everything that can be known to be wrong before any work: params.yaml, the data it names, this environment.

`shift-diffusion check` reports all problems at once, and what the run will need; `make repro` begins with it.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

from shift_diffusion.config import ConfigError, Params, load_params
from shift_diffusion.data.folder import SUFFIXES


def main(path: str | Path = "params.yaml") -> int:
    """Prints the findings. Returns 0 when the pipeline can start, 2 when it can't."""
    try:
        params = load_params(path)
        problems = [*data_problems(params), *environment_problems(params)]
        if not problems:
            lines, problems = estimates(params)
    except ConfigError as error:
        problems = error.problems
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    if problems:
        print(f"{len(problems)} problem{'s' * (len(problems) > 1)} found, nothing was started", file=sys.stderr)
        return 2
    print("\n".join(lines))
    return 0


def data_problems(params: Params) -> list[str]:
    """What keeps the data source from giving pictures; looks at names only, prepare reads the pictures."""
    problems = []
    if not Path(params.data.path).is_dir():
        problems = [
            f"data.path: '{params.data.path}' is not a folder; give the one that holds your pictures, or data/raw"
        ]
    return problems + _source_problems(params, folder_is_there=not problems)


def _source_problems(params: Params, folder_is_there: bool) -> list[str]:
    kind, _, name = params.data.source.partition(":")
    if kind in ("torchvision", "huggingface") and not name:
        return [f"data.source: '{params.data.source}' lacks the name of the data set, as in '{kind}:NAME'"]
    if kind == "torchvision":
        return _torchvision_problems(name)
    if kind == "huggingface" and importlib.util.find_spec("datasets") is None:
        return ["data.source: huggingface needs the package datasets: pip install 'shift-diffusion[huggingface]'"]
    return _folder_problems(params) if kind == "folder" and folder_is_there else []


def _torchvision_problems(name: str) -> list[str]:
    import torchvision.datasets

    if hasattr(torchvision.datasets, name):
        return []
    return [f"data.source: torchvision has no data set '{name}'; see the list in its documentation, e.g. CIFAR10"]


def _folder_problems(params: Params) -> list[str]:
    folder = Path(params.data.path)
    if not any(file.suffix.lower() in SUFFIXES for file in folder.rglob("*")):
        kinds = ", ".join(sorted(SUFFIXES))
        return [f"data.path: '{params.data.path}' holds no pictures; looked for {kinds}, in sub-folders too"]
    return []


def environment_problems(params: Params) -> list[str]:
    """What this machine lacks for the run."""
    from shift_diffusion.runtime import resolve_device, resolve_precision

    try:
        resolve_precision(params.runtime.precision, resolve_device(params.runtime.device))
    except ConfigError as error:
        return error.problems
    return _disk_problems(params)


def _disk_problems(params: Params) -> list[str]:
    free = shutil.disk_usage(".").free
    images = params.data.num_images or 0
    needed = 2 * images * sum(3 * stage.resolution**2 for stage in params.train.stages)  # the store and DVC's copy
    if needed > free:
        return [f"data.num_images: {images} pictures need {needed / 1e9:.1f} GB of disk, {free / 1e9:.1f} GB are free"]
    return []


def estimates(params: Params) -> tuple[list[str], list[str]]:
    """(lines for people, problems): parameters, memory and a measured time per stage."""
    from shift_diffusion.estimate import estimate_stage
    from shift_diffusion.runtime import set_up

    environment = set_up(params.runtime)
    lines = [f"params.yaml is valid. {environment.device}, {environment.precision}, {environment.threads} threads"]
    lines.append(
        f"{'stage':9}{'pixels':>7}{'steps':>8}{'parameters':>12}{'checkpoint':>12}{'images/s':>10}{'minutes':>9}"
    )
    problems, total = [], 0.0
    for number, stage in enumerate(params.train.stages, start=1):
        found = estimate_stage(params, number, environment)
        minutes = stage.images / found.images_per_second / 60
        total += minutes
        lines.append(
            f"stage-{number:<3}{stage.resolution:>7}{stage.steps:>8}{found.parameters:>12,}"
            f"{found.checkpoint_bytes / 1e6:>10.0f}MB{found.images_per_second:>10.1f}{minutes:>9.1f}"
        )
        free = shutil.disk_usage(".").free
        kept = (params.train.cadence.keep_checkpoints + 1) * found.checkpoint_bytes
        if kept > free:
            problems.append(
                f"train.cadence.keep_checkpoints: stage-{number} needs {kept / 1e9:.2f} GB, {free / 1e9:.2f} are free"
            )
    lines.append(f"training takes about {total:.0f} minutes here, {environment.device.type} otherwise idle")
    return lines, problems
