"""A temporary clone with the tiny parameters of tests/smoke.yaml: real DVC, real stages, nothing shared."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from shift_diffusion.config import read_yaml
from tests.conftest import ROOT, merge


def make_clone(folder: Path, overlay: dict | None = None) -> Path:
    """Copies what git tracks or would track (uncommitted edits too), without dvc.lock, and commits it anew."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=True, text=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        source, target = ROOT / name, folder / name
        if source.is_file() and name != "dvc.lock" and not name.startswith("reports/"):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    smoke = merge(read_yaml(ROOT / "params.yaml"), read_yaml(ROOT / "tests" / "smoke.yaml"))
    (folder / "params.yaml").write_text(yaml.safe_dump(merge(smoke, overlay or {}), sort_keys=False))
    for command in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "smoke"]):
        identity = ["-c", "user.name=smoke", "-c", "user.email=smoke@localhost"]
        subprocess.run(["git", *identity, *command], cwd=folder, check=True)
    return folder


def environment() -> dict[str, str]:
    """The tests' own environment, its Python first on the PATH (DVC's stages say `python`), no user settings."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("MLFLOW_", "DVC_", "PREFECT_"))}
    return {
        **clean,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONWARNINGS": "ignore",
    }


def run(folder: Path, *command: str, check: bool = True, timeout: float = 900) -> subprocess.CompletedProcess:
    """Runs a command in the clone; a failure shows the end of its output."""
    done = subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=timeout, check=False
    )
    if check and done.returncode:
        raise AssertionError(f"{command} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done


def lock(folder: Path) -> dict:
    return yaml.safe_load((folder / "dvc.lock").read_text())["stages"]


def cached_outs(folder: Path) -> dict[str, str]:
    """path -> hash of every out in dvc.lock that DVC caches."""
    declared = yaml.safe_load((folder / "dvc.yaml").read_text())["stages"]
    uncached = {
        path
        for stage in declared.values()
        for kind in ("outs", "metrics", "plots")
        for entry in stage.get(kind, [])
        if isinstance(entry, dict)
        for path, options in entry.items()
        if options.get("cache") is False
    }
    return {
        out["path"]: out["md5"]
        for stage in lock(folder).values()
        for out in stage.get("outs", [])
        if out["path"] not in uncached
    }
