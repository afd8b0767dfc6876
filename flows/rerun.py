"""Makes a past run again from its record in MLflow: `python -m flows.rerun RUN_ID`.

The run's commit, uncommitted changes, parameters and dvc.lock go into a git worktree; there DVC reproduces the run's
stage and all before it, with the project's cache. The hashes of all outs are then compared with the recorded ones.

    python -m flows.rerun RUN_ID              outs come from DVC's cache where it has them; missing ones are computed
    python -m flows.rerun RUN_ID --check      every stage is executed again, nothing is taken from the cache
    python -m flows.rerun RUN_ID --code .     the recorded parameters and data with this working tree's code
    python -m flows.rerun RUN_ID --keep DIR   leaves the worktree in DIR, with the models and pictures of that time

Exit code: 0 identical, 1 something differs, 2 it can't be made again (the message says what is missing).
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from flows.rerun_record import Record, read_record
from flows.rerun_worktree import reproduce, worktree
from shift_diffusion.config import ConfigError
from shift_diffusion.tracking import TrackingError, project_root, redact
from shift_diffusion.tracking.record import path_md5, read_mapping
from shift_diffusion.tracking.store import open_store


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        return rerun(project_root(), options.run_id, options.check, options.code, options.keep)
    except (ConfigError, TrackingError) as error:
        print(f"error: {redact(error)}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m flows.rerun", description="Makes a past run again and compares.")
    parser.add_argument("run_id", help="MLflow's id of a stage's run, or of its parent (the whole pipeline)")
    parser.add_argument("--check", action="store_true", help="execute every stage again instead of using the cache")
    parser.add_argument("--code", metavar="REV", help="another revision's code, or . for this working tree's")
    parser.add_argument(
        "--keep", metavar="DIR", type=Path, help="leave the worktree, with all outs, in this new folder"
    )
    return parser


def rerun(root: Path, run_id: str, anew: bool = False, code: str | None = None, keep: Path | None = None) -> int:
    """Reproduces and reports; returns 0 for identical, 1 for any difference.

    Raises: ConfigError or TrackingError when the run can't be made again.
    """
    store = open_store(root)
    record = read_record(store, run_id)
    print(
        f"run {record.run_id}: stage {record.stage}, commit {record.commit[:10]}{' with changes' * bool(record.patch)}"
    )
    if keep is not None and keep.exists():
        raise ConfigError([f"--keep: {keep} exists already; name a new folder"])
    with tempfile.TemporaryDirectory(prefix="rerun-") as temporary:
        place = keep.resolve() if keep else Path(temporary) / "worktree"
        with worktree(root, place, record, code, keep is not None) as folder:
            reproduce(root, folder, record.stages, anew)
            found = compare(record, folder)
    _report(record, found, root)
    store.client.set_tag(
        record.run_id, "rerun", "identical" if not any(found.values()) else f"differs: {_names(found)}"
    )
    return 1 if any(found.values()) else 0


def compare(record: Record, folder: Path) -> dict[str, list[str]]:
    """Stage -> differences between the record and what now lies in `folder`, none for an identical stage."""
    locked = read_mapping(folder / "dvc.lock").get("stages") or {}
    return {stage: _differences(record, stage, locked.get(stage) or {}) for stage in record.stages}


def _differences(record: Record, stage: str, now: dict) -> list[str]:
    expected, made = record.expected(stage), {out["path"]: out["md5"] for out in now.get("outs", [])}
    outs = [f"out {path}" for path in sorted(expected) if made.get(path) != expected[path]]
    then = record.inputs(stage)
    deps = {dep["path"]: dep.get("md5") for dep in now.get("deps", [])}
    changed = [
        f"input {path}" for path in sorted(then.keys() | deps.keys()) if then and then.get(path) != deps.get(path)
    ]
    return outs + changed


def _names(found: dict[str, list[str]]) -> str:
    return ", ".join(stage for stage, differences in found.items() if differences)


def _report(record: Record, found: dict[str, list[str]], root: Path) -> None:
    for stage, differences in found.items():
        print(f"{stage}: {'differs: ' + ', '.join(differences) if differences else 'identical'}")
    for note in record.changed_packages():
        print(f"note: {note}")
    for stage, paths in edited_since(record, root).items():
        print(f"note: in your working tree {stage} would not be the same: {', '.join(paths)} changed since that run")
    print(f"differs: {_names(found)}" if any(found.values()) else "identical")


def edited_since(record: Record, root: Path) -> dict[str, list[str]]:
    """Stage -> files of its code that are not in the working tree as they were then."""
    edited = {}
    for stage in record.stages:
        code = {path: md5 for path, md5 in record.inputs(stage).items() if path.endswith(".py")}
        if paths := [path for path, md5 in code.items() if path_md5(root / path) != md5]:
            edited[stage] = paths
    return edited


if __name__ == "__main__":
    sys.exit(main())
