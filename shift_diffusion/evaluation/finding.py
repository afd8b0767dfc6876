"""What a diagnosis is made from, and what it says."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from shift_diffusion.config import ConfigError, Params, load_params
from shift_diffusion.files import read_json

Row = Mapping[str, float]


@dataclass(frozen=True)
class Finding:
    """symptom: in a few words. evidence: the numbers that show it. change: of params.yaml, what treats it."""

    symptom: str
    evidence: str
    change: str


@dataclass(frozen=True)
class StageRecord:
    """What one training stage left behind.

    rows: of history.csv, in order of the step; empty cells are absent. metrics: of metrics.json, {} for a run that
    hasn't ended. error: text of the exception that ended it, or "".
    """

    rows: list[Row]
    metrics: Mapping[str, float] = field(default_factory=dict)
    error: str = ""

    def series(self, column: str) -> list[float]:
        return [row[column] for row in self.rows if column in row]


@dataclass(frozen=True)
class Evidence:
    """Everything known about a run, as plain numbers; what is missing gives no finding.

    stages: number -> record. evaluation: of reports/evaluate/metrics.json, with `NAME_real` beside the numbers that
    have a counterpart in real pictures. params: to name present values in the proposed changes.
    """

    stages: Mapping[int, StageRecord] = field(default_factory=dict)
    evaluation: Mapping[str, float] = field(default_factory=dict)
    params: Params | None = None

    @classmethod
    def read(cls, reports: str | Path) -> Evidence:
        """Collects what lies under a `reports` folder; a stage that died is read from its newest checkpoint.

        Raises:
            ConfigError: nothing is there to diagnose.
        """
        reports = Path(reports)
        stages = {number: _stage_record(reports, number) for number in (1, 2, 3)}
        found = {number: record for number, record in stages.items() if record}
        evaluation = reports / "evaluate" / "metrics.json"
        if not found and not evaluation.exists():
            raise ConfigError([f"{reports}: no reports of a run here (stage-N/history.csv, evaluate/metrics.json)"])
        return cls(found, read_json(evaluation) if evaluation.exists() else {}, _params(reports.absolute().parent))


def _params(root: Path) -> Params | None:
    """None where the run's parameters aren't there or aren't valid: the rules work without them."""
    try:
        return load_params(root / "params.yaml")
    except ConfigError:
        return None


def _stage_record(reports: Path, number: int) -> StageRecord | None:
    folder = reports / f"stage-{number}"
    error = _text(folder / "error.txt")
    if (folder / "history.csv").exists():
        metrics = folder / "metrics.json"
        return StageRecord(read_history(folder / "history.csv"), read_json(metrics) if metrics.exists() else {}, error)
    record = _unfinished(reports.absolute().parent / ".checkpoints", number)
    return record or (StageRecord([], {}, error) if error else None)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def read_history(path: str | Path) -> list[Row]:
    """Rows of a history.csv; cells that are empty are left out."""
    with open(path, encoding="utf-8", newline="") as lines:
        return [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(lines)]


def _unfinished(checkpoints: Path, number: int) -> StageRecord | None:
    """The history in the newest checkpoint of a stage."""
    states = list(checkpoints.glob(f"stage-{number}-*/step-*/state.json"))
    if not states:
        return None
    state: dict[str, Any] = json.loads(max(states, key=lambda path: path.stat().st_mtime).read_text())["state"]
    guard = state["guard"]
    metrics = {name: guard[name] for name in ("skipped_steps", "rollbacks") if name in guard}
    return StageRecord(state["history"]["rows"], metrics)
