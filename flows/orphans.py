"""Flow runs whose process died without a word (kill -9, power cut): found at the next start and closed.

Each flow leaves a note with its process in `.dvc/tmp/flows/`. A note whose process is gone belongs to a run
that the Prefect server may still show as Running, holding the only concurrency slot of its deployment.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.exceptions import ObjectNotFound
from prefect.runtime import deployment
from prefect.states import Crashed

from flows.project import is_alive, this_process

NOTES = Path(".dvc/tmp/flows")


@contextlib.contextmanager
def note_run(root: Path, flow_run_id: UUID) -> Iterator[None]:
    """Keeps the note of this process as long as the flow runs in it."""
    path = root / NOTES / f"{flow_run_id}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    runner = this_process(os.getppid()) if deployment.id else None  # started by `serve` or by a worker
    path.write_text(json.dumps({**this_process(), "runner": runner}))
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def close_orphans(root: Path) -> list[str]:
    """Marks the runs of dead processes Crashed and returns their ids."""
    closed = []
    for path in sorted((root / NOTES).glob("*.json")):
        if _process_lives(path):
            continue
        with get_client(sync_client=True) as client, contextlib.suppress(ObjectNotFound):
            if _close(client, UUID(path.stem)):
                closed.append(path.stem)
        path.unlink(missing_ok=True)
    return closed


def _process_lives(note: Path) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return is_alive(json.loads(note.read_text()))
    return False


def _close(client: SyncPrefectClient, flow_run_id: UUID) -> bool:
    run = client.read_flow_run(flow_run_id)
    if run.state and run.state.is_final():
        return False
    crashed = Crashed(message="its process ended without a word; found at the start of the next flow")
    for task_run in client.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))):
        if task_run.state and not task_run.state.is_final():
            client.set_task_run_state(task_run.id, crashed, force=True)
    client.set_flow_run_state(flow_run_id, crashed, force=True)
    return True
