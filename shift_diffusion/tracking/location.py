"""Where the record is kept: the same store whatever the working directory, and addresses without passwords.

The project root is found in this order:

1. `SHIFT_DIFFUSION_ROOT`, for a stage that works in another folder but belongs to this project (flows.rerun sets it);
2. the folder with dvc.yaml, upward from the working directory. If that folder is a temporary copy made by
   `dvc exp run --temp` or `--queue` (below `.dvc/tmp/exps`), the project it was copied from;
3. `DVC_ROOT`, which DVC sets for every stage;
4. the working directory.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

EXPERIMENT = "shift-diffusion"


def code_root(start: str | Path | None = None) -> Path:
    """The folder with dvc.yaml, upward from `start` (default: working directory); the start itself if there is none."""
    start = Path(start or Path.cwd()).resolve()
    return next((folder for folder in (start, *start.parents) if (folder / "dvc.yaml").is_file()), start)


def project_root(start: str | Path | None = None) -> Path:
    """The folder whose mlflow.db and mlartifacts belong to whoever calls; see the module's docstring."""
    if named := os.environ.get("SHIFT_DIFFUSION_ROOT"):
        return Path(named).resolve()
    root = code_root(start)
    if (root / "dvc.yaml").is_file():
        return _original_of_copy(root)
    if named := os.environ.get("DVC_ROOT"):
        return Path(named).resolve()
    return root


def _original_of_copy(root: Path) -> Path:
    parts = root.parts
    for index in range(len(parts) - 3):
        if parts[index : index + 3] == (".dvc", "tmp", "exps"):
            return Path(*parts[:index])
    return root


def tracking_uri(root: Path | None = None) -> str:
    """`MLFLOW_TRACKING_URI` if set, else `sqlite:///<project root>/mlflow.db`."""
    if named := os.environ.get("MLFLOW_TRACKING_URI"):
        return named
    return f"sqlite:///{(root or project_root()) / 'mlflow.db'}"  # not quoted: SQLAlchemy takes the path as it is


def default_database(root: Path | None = None) -> Path | None:
    """The SQLite file of the default store, None where `MLFLOW_TRACKING_URI` names another."""
    return None if os.environ.get("MLFLOW_TRACKING_URI") else (root or project_root()) / "mlflow.db"


def artifact_root(root: Path | None = None) -> Path:
    return (root or project_root()) / "mlartifacts"


def experiment_name() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT


_USERINFO = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]*://)[^\s/@]*(?:/[^\s/@]*)*?@(?=[^\s@/])")
_ASSIGNED = re.compile(r"(?i)\b(password|passwd|secret|token|api_?key|access_?key)(\s*[=:]\s*)[^\s&,;'\"]+")


def redact(text: object) -> str:
    """`text` with user names and passwords of addresses, and `password=...` and the like, replaced by ***.

    Everything that tracking prints or stores goes through here, the messages of foreign exceptions included.
    """
    shown = _USERINFO.sub(r"\g<scheme>***@", str(text))
    shown = _ASSIGNED.sub(r"\1\2***", shown)
    for name in ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"):
        if secret := os.environ.get(name):
            shown = shown.replace(secret, "***")
    return shown
