"""What is new since the last training: the reasons for another one, short enough for a flow's message."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from flows.dvc_stage import Command, run_dvc
from flows.project import release_dead_locks
from shift_diffusion.config import Params

PREPARED = Path("reports/prepare/metrics.json")
NEW_DATA = "data: the source holds other pictures than the last run prepared"
SHOWN = 6  # items of one kind in a reason


def what_is_new(root: Path, lock: int, params: Params) -> list[str]:
    """Why to retrain, one line per kind of reason; empty when every stage's out is up to date.

    DVC answers for parameters, code and outs. It doesn't watch the pictures' own place, so their content
    hash is compared with the one that the stage `prepare` reported.
    """
    from shift_diffusion.data.sources import content_hash

    release_dead_locks(root)
    reasons = [] if content_hash(params.data) == _prepared_hash(root) else [NEW_DATA]
    output = run_dvc(Command(["status", "--json"], root, log=lambda line: None, keep=(lock,)))
    return reasons + reasons_of(json.loads(next(line for line in output.splitlines()[::-1] if line.startswith("{"))))


def _prepared_hash(root: Path) -> str | None:
    try:
        return json.loads((root / PREPARED).read_text(encoding="utf-8")).get("source_hash")
    except FileNotFoundError:
        return None


def reasons_of(status: dict[str, list]) -> list[str]:
    """DVC's status as "parameters: ...", "changed: ..." and so on; consequences of a reason are left out."""
    found: dict[str, set[str]] = {"parameters": set(), "changed": set(), "commands": set(), "missing outs": set()}
    for stage, entries in status.items():
        for kind, name in _changes(stage, entries):
            found[kind].add(name)
    found["parameters"] -= {name.rpartition(".")[0] for name in found["parameters"]}  # a section, beside its keys
    found["changed"] -= found["missing outs"]  # an out that is missing is also a changed input of the next stage
    return [f"{kind}: {_short(sorted(names))}" for kind, names in found.items() if names]


def _changes(stage: str, entries: list) -> Iterator[tuple[str, str]]:
    """(kind, name) from {"changed deps": {PATH: HOW or {PARAMETER: HOW}}}, {"changed outs": ...} or a word."""
    for entry in entries:
        if isinstance(entry, str):  # "changed command", "always changed"
            yield "commands", stage
            continue
        for kind, paths in entry.items():
            for path, how in paths.items():
                if isinstance(how, dict):
                    yield from (("parameters", name) for name in how)
                elif kind == "changed outs":
                    yield "missing outs" if how == "deleted" else "changed", path
                elif how != "new":  # a stage that never ran: its missing outs say so
                    yield "changed", path


def _short(names: list[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
