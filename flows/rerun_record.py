"""What MLflow knows about a past run, as far as it takes to make it again."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from shift_diffusion.tracking.parents import KIND, STAGE
from shift_diffusion.tracking.record import MAIN_PACKAGES, out_paths, packages
from shift_diffusion.tracking.run import UNCACHED
from shift_diffusion.tracking.store import Store, TrackingError

TIMED = ("benchmark", "register")  # stages that measure time or speak to the registry: nothing in them can be repeated


@dataclass(frozen=True)
class Record:
    """commit and patch give the code; params, dvc_yaml and lock are files' texts; outs and deps (of the stage
    itself, which dvc.lock didn't know yet) map path to DVC's hash."""

    run_id: str
    stage: str  # stage of dvc.yaml; for the parent of a pipeline the last one that ran
    commit: str
    patch: bytes
    params: str
    dvc_yaml: str
    lock: str
    outs: dict[str, str]
    deps: dict[str, str]
    uncached: dict[str, bytes] = field(default_factory=dict)
    packages: dict[str, str] = field(default_factory=dict)

    @property
    def stages(self) -> list[str]:
        """The stage and all that it depends on, in the order of dvc.yaml, without the timed ones."""
        entries = yaml.safe_load(self.dvc_yaml)["stages"]
        owner = {path.rstrip("/"): name for name, entry in entries.items() for path in out_paths(entry)}
        wanted, queue = set(), [self.stage]
        while queue:
            name = queue.pop()
            wanted.add(name)
            deps = [str(dep).rstrip("/") for dep in entries[name].get("deps") or []]
            queue += [owner[dep] for dep in deps if dep in owner and owner[dep] not in wanted]
        return [name for name in entries if name in wanted and name not in TIMED]

    def locked(self, stage: str) -> dict:
        return ((yaml.safe_load(self.lock) or {}).get("stages") or {}).get(stage) or {}

    def expected(self, stage: str) -> dict[str, str]:
        """Path -> hash of the stage's outs at the time of the run."""
        known = {out["path"]: out["md5"] for out in self.locked(stage).get("outs", [])}
        return self.outs if stage == self.stage else known

    def inputs(self, stage: str) -> dict[str, str | None]:
        """Path -> hash of the stage's dependencies at the time of the run."""
        known = {dep["path"]: dep.get("md5") for dep in self.locked(stage).get("deps", [])}
        return self.deps if stage == self.stage else known

    def changed_packages(self) -> list[str]:
        """Main packages that had another version then."""
        now = packages()
        pairs = [(name, self.packages.get(name), now.get(name)) for name in MAIN_PACKAGES]
        return [f"{name} {then} then, {here or 'missing'} now" for name, then, here in pairs if then and then != here]


def read_record(store: Store, run_id: str) -> Record:
    """Raises TrackingError when there is no such run, or its record doesn't suffice; says what is missing."""
    try:
        run = store.client.get_run(run_id)
        if run.data.tags.get(KIND) == "pipeline":
            run = _last_child(store, run_id)
        with tempfile.TemporaryDirectory() as folder:
            return _read(store, run, Path(folder))
    except TrackingError:
        raise
    except Exception as error:
        raise TrackingError(f"run {run_id} can't be read: {' '.join(str(error).split())}") from error


def _last_child(store: Store, parent_id: str):
    query = f"tags.`mlflow.parentRunId` = '{parent_id}' and attributes.status = 'FINISHED'"
    order = ["attributes.start_time DESC"]
    found = store.client.search_runs([store.experiment_id], query, max_results=1, order_by=order)
    if not found:
        raise TrackingError(f"run {parent_id}: none of its stages has finished")
    return found[0]


def _read(store: Store, run, folder: Path) -> Record:
    run_id, tags = run.info.run_id, run.data.tags
    client = store.client
    names = {item.path for item in client.list_artifacts(run_id, "record")}
    needed = ("record/params.yaml", "record/dvc.yaml", "record/outs.json", "record/deps.json")
    missing = [name for name in needed if name not in names]
    if "mlflow.source.git.commit" not in tags:
        missing.append("git commit")
    if tags.get("git.dirty") == "true" and "record/uncommitted.patch" not in names:
        missing.append("record/uncommitted.patch")
    if STAGE not in tags or missing:
        status = run.info.status
        raise TrackingError(f"run {run_id} ({status}) can't be made again, its record lacks: {', '.join(missing)}")
    base = Path(client.download_artifacts(run_id, "record", str(folder)))
    uncached = base / Path(UNCACHED).relative_to("record")
    return Record(
        run_id=run_id,
        stage=tags[STAGE],
        commit=tags["mlflow.source.git.commit"],
        patch=_bytes(base / "uncommitted.patch"),
        params=(base / "params.yaml").read_text(encoding="utf-8"),
        dvc_yaml=(base / "dvc.yaml").read_text(encoding="utf-8"),
        lock=_bytes(base / "dvc.lock").decode(),
        outs=json.loads((base / "outs.json").read_text(encoding="utf-8")),
        deps=json.loads((base / "deps.json").read_text(encoding="utf-8")),
        uncached={p.relative_to(uncached).as_posix(): p.read_bytes() for p in uncached.rglob("*") if p.is_file()},
        packages={k.removeprefix("version."): v for k, v in tags.items() if k.startswith("version.")},
    )


def _bytes(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""
