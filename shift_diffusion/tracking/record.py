"""What must be remembered to make a run again: code with uncommitted changes, package versions, hashes.

Nothing here needs MLflow, DVC or torch; every function answers with what it can find and bears a missing git.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import platform
import subprocess
import tempfile
from pathlib import Path

import yaml

MAIN_PACKAGES = ("torch", "torchao", "torchvision", "accelerate", "diffusers", "transformers", "torch-fidelity")
MAIN_PACKAGES += ("safetensors", "numpy", "dvc", "mlflow", "prefect")
PATCH_LIMIT = 20_000_000  # characters
_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # C where it is built in: dvc.lock is read several times a run
# Never part of the stored patch, even where someone forgot to ignore them.
SECRET_FILES = (".env", ".env.*", "*.pem", "*.key", "id_rsa*", "id_ed25519*", "config.local", ".netrc", "*.credentials")
# Nor what this package writes while git reads: a file that vanishes in between makes `git add` fail as a whole.
OWN_FILES = ("mlflow.db*", ".creating-mlflow.db*", ".mlflow/**", "mlartifacts/**")
ATTEMPTS = 3


def _git(root: Path, *arguments: str, env: dict | None = None) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, timeout=60, env={**os.environ, **(env or {})}
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.decode("utf-8", "surrogateescape") if done.returncode == 0 else None


def git_state(root: Path) -> dict:
    """`{"commit", "branch", "dirty": bool, "patch", "complete": bool}`; no repository or no commit yet: commit None.

    `git apply` of the patch on the commit gives the working tree back: changed, new and deleted files, binary ones too.
    Untracked files that git ignores, and files that look like secrets, are left out. Where the patch would be larger
    than PATCH_LIMIT (pictures somebody drew into the working tree), or untracked files go on vanishing while git reads
    them, all untracked files are, and "complete" is False.
    """
    commit = (_git(root, "rev-parse", "--verify", "HEAD") or "").strip() or None
    branch = (_git(root, "rev-parse", "--abbrev-ref", "HEAD") or "").strip() or None
    if commit is None:
        return {"commit": None, "branch": branch, "dirty": False, "patch": "", "complete": True}
    attempts = (_patch(root, commit, "-A") for _ in range(ATTEMPTS))
    patch = next((patch for patch in attempts if patch is not None), None)
    complete = patch is not None and len(patch) <= PATCH_LIMIT
    if not complete:
        patch = _patch(root, commit, "-u")
    return {"commit": commit, "branch": branch, "dirty": patch != "", "patch": patch or "", "complete": complete}


def _patch(root: Path, commit: str, which: str) -> str | None:
    """Built with a private index and object folder, so that neither the user's index nor the repository changes."""
    git_dir, objects = _git(root, "rev-parse", "--absolute-git-dir"), _git(root, "rev-parse", "--git-path", "objects")
    if git_dir is None or objects is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index"
        env = {
            "GIT_INDEX_FILE": str(index),
            "GIT_OBJECT_DIRECTORY": str(Path(folder) / "objects"),
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": str((root / objects.strip()).resolve()),
        }
        (Path(folder) / "objects").mkdir()
        exclude = [f":(exclude,glob)**/{pattern}" for pattern in SECRET_FILES + OWN_FILES]
        if _git(root, "read-tree", commit, env=env) is None:
            return None
        if _git(root, "add", which, "--", ":/", *exclude, env=env) is None:
            return None
        return _git(root, "diff", "--cached", "--binary", "--no-color", "--no-ext-diff", commit, env=env)


def packages() -> dict[str, str]:
    """Installed distributions and their versions."""
    found = dict(filter(None, map(_name_and_version, importlib.metadata.distributions())))
    return dict(sorted(found.items(), key=lambda item: item[0].lower()))


def _name_and_version(distribution: importlib.metadata.Distribution) -> tuple[str, str] | None:
    """From the head of the metadata: parsing hundreds of them as e-mails takes as long as ten training steps."""
    text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
    fields = dict(line.split(": ", 1) for line in text.partition("\n\n")[0].splitlines() if ": " in line)
    return (fields["Name"], fields["Version"]) if {"Name", "Version"} <= fields.keys() else None


def machine() -> dict[str, str]:
    """What a difference in the last bit may come from."""
    return {"python": platform.python_version(), "platform": platform.platform(), "cpu_count": str(os.cpu_count())}


def config_hash(params_text: str) -> str:
    """The same for two params.yaml that mean the same (comments, order and number formats don't count)."""
    from shift_diffusion.config import ConfigError, read_yaml

    try:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "params.yaml"
            path.write_text(params_text, encoding="utf-8")
            canonical = json.dumps(read_yaml(path), sort_keys=True, default=str)
    except ConfigError:
        canonical = params_text
    return hashlib.sha256(canonical.encode()).hexdigest()


def path_md5(path: Path) -> str | None:
    """DVC's own hash of a file or folder (so that it can be compared with dvc.lock); None where there is nothing."""
    if path.is_file():
        with open(path, "rb") as file:
            return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
    if not path.is_dir():
        return None
    files = sorted(p for p in path.rglob("*") if p.is_file() and not _ignored(p.relative_to(path)))
    entries = [{"md5": path_md5(p), "relpath": p.relative_to(path).as_posix()} for p in files]
    entries.sort(key=lambda entry: entry["relpath"])
    text = json.dumps(entries, sort_keys=True)
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() + ".dir"


def _ignored(relative: Path) -> bool:
    return "__pycache__" in relative.parts or relative.suffix == ".pyc" or relative.name == ".gitignore"


def read_mapping(path: Path) -> dict:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_YAML)  # noqa: S506 - a safe loader
    except (OSError, yaml.YAMLError):
        return {}
    return content if isinstance(content, dict) else {}


def stage_entry(root: Path, stage: str) -> dict | None:
    """The stage in dvc.yaml, for a plain stage or `NAME@ITEM` of a foreach; None where dvc.yaml doesn't have it."""
    stages = read_mapping(root / "dvc.yaml").get("stages") or {}
    entry = stages.get(stage)
    return entry if isinstance(entry, dict) and "cmd" in entry else None


def _paths(items: object) -> list[str]:
    return [next(iter(item)) if isinstance(item, dict) else str(item) for item in items or []]


def out_paths(entry: dict) -> list[str]:
    """Outs, metrics and plots of a stage of dvc.yaml."""
    return [path for key in ("outs", "metrics", "plots") for path in _paths(entry.get(key))]


def uncached_outs(root: Path) -> list[str]:
    """Outs that DVC doesn't keep (`cache: false`) and that are on disk as dvc.lock knows them.

    They are small reports. DVC can't restore them, so without them in the record it would run their stage again.
    """
    locked = read_mapping(root / "dvc.lock").get("stages") or {}
    hashes = {out["path"]: out.get("md5") for entry in locked.values() for out in entry.get("outs", [])}
    stages = read_mapping(root / "dvc.yaml").get("stages") or {}
    paths = [path for name in stages for path in uncached_out_paths(stage_entry(root, name) or {})]
    return [path for path in paths if path in hashes and path_md5(root / path) == hashes[path]]


def uncached_out_paths(entry: dict) -> list[str]:
    items = [item for key in ("outs", "metrics", "plots") for item in entry.get(key) or [] if isinstance(item, dict)]
    return [path for item in items for path, options in item.items() if (options or {}).get("cache") is False]


def out_hashes(root: Path, stage: str) -> dict[str, str]:
    """Path -> hash of what the stage has written."""
    entry = stage_entry(root, stage) or {}
    hashes = {path: path_md5(root / path) for path in out_paths(entry)}
    return {path: found for path, found in hashes.items() if found}


def dep_hashes(root: Path, stage: str) -> dict[str, str | None]:
    """Path -> hash of the stage's dependencies. Another stage's out is taken from dvc.lock, just written by DVC."""
    known = {
        out["path"]: out["md5"]
        for locked in (read_mapping(root / "dvc.lock").get("stages") or {}).values()
        for out in locked.get("outs", [])
        if "md5" in out
    }
    deps = _paths((stage_entry(root, stage) or {}).get("deps"))
    return {path: known.get(path.rstrip("/")) or path_md5(root / path) for path in deps}


def stage_hash(root: Path, stage: str) -> str | None:
    """One hash of everything DVC would look at: command, hashes of the dependencies, values of the parameters."""
    entry = stage_entry(root, stage)
    if entry is None:
        return None
    content = [entry["cmd"], dep_hashes(root, stage), _parameter_values(root, entry)]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def _parameter_values(root: Path, entry: dict) -> dict:
    values: dict = {}
    for item in entry.get("params") or []:
        file, keys = next(iter(item.items())) if isinstance(item, dict) else ("params.yaml", [item])
        content = read_mapping(root / file)
        for key in keys or [""]:
            value: object = content
            for part in key.split(".") if key else []:
                value = value.get(part) if isinstance(value, dict) else None
            values[f"{file}:{key}"] = value
    return values
