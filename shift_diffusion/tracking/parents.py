"""One parent run per configuration, one child run per execution of a stage."""

from __future__ import annotations

from typing import Any

from shift_diffusion.tracking.names import clean_name, flatten, shorten, value_text
from shift_diffusion.tracking.owner import has_vanished
from shift_diffusion.tracking.store import Store

CONFIG, STAGE, JOURNAL, KIND = "config_hash", "stage", "journal", "kind"
OWNER = ("pid", "started", "host")


def create_runs(store: Store, key: str, start: dict) -> dict[str, str]:
    """Child and parent of a journal whose first event is `start`, each created once however often this is called.

    Returns `{"run_id", "parent_id"}`.
    """
    with store.lock("parents"):
        known = _search(store, f"tags.{JOURNAL} = '{key}'", 1)
        if known:
            return {"run_id": known[0].info.run_id, "parent_id": known[0].data.tags["mlflow.parentRunId"]}
        parent_id = _parent(store, start)
        before = _search(store, f"tags.{STAGE} = '{start['stage']}' and tags.{KIND} = 'stage'", 1)
        tags = {**start["tags"], "mlflow.parentRunId": parent_id, JOURNAL: key, KIND: "stage", STAGE: start["stage"]}
        tags |= {CONFIG: start["config_hash"], **{f"process.{k}": str(start["owner"][k]) for k in OWNER}}
        tags |= _link(before[0], start) if before else {}
        child = store.client.create_run(store.experiment_id, start["time"], tags=tags, run_name=start["stage"])
        store.client.update_run(parent_id, status="RUNNING")
    return {"run_id": child.info.run_id, "parent_id": parent_id}


def _search(store: Store, query: str, count: int = 1000) -> list[Any]:
    order = ["attributes.start_time DESC"]
    return list(store.client.search_runs([store.experiment_id], query, max_results=count, order_by=order))


def _parent(store: Store, start: dict) -> str:
    found = _search(store, f"tags.{CONFIG} = '{start['config_hash']}' and tags.{KIND} = 'pipeline'", 1)
    if found:
        return found[0].info.run_id
    tags = {CONFIG: start["config_hash"], KIND: "pipeline", "mlflow.user": start["tags"].get("mlflow.user", "")}
    name = f"pipeline-{start['config_hash'][:8]}"
    run_id = store.client.create_run(store.experiment_id, start["time"], tags=tags, run_name=name).info.run_id
    _log_configuration(store, run_id, start)
    return run_id


def _log_configuration(store: Store, run_id: str, start: dict) -> None:
    from mlflow.entities import Param

    values = {clean_name(k): value_text(v) for k, v in flatten(start["configuration"]).items()}
    params = [Param(k, shorten(v, "params.yaml")) for k, v in values.items()]
    for index in range(0, len(params), 100):
        store.client.log_batch(run_id, params=params[index : index + 100])
    try:
        store.client.log_text(run_id, start["params_text"], "params.yaml")
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise


def _link(before: Any, start: dict) -> dict[str, str]:
    """An execution never changes an earlier run; it says which one it follows, and what differs in its parameters."""
    old, new = before.data.params, start["params"]
    names = sorted(k for k in old.keys() | new.keys() if old.get(k) != new.get(k))
    changes = [f"{name}: {old.get(name, '(absent)')} -> {new.get(name, '(absent)')}" for name in names]
    tags = {"previous_run": before.info.run_id, "previous_status": before.info.status}
    return tags | ({"changed_params": "\n".join(changes)[:5000]} if changes else {})


def copy_summary(store: Store, parent_id: str, start: dict, summary: dict[str, float]) -> None:
    """Numbers without a step (FID, latency, ...) also stand on the parent, as STAGE/NAME, to compare configurations."""
    if not summary:
        return
    from mlflow.entities import Metric

    from shift_diffusion.tracking.journal import now_ms

    metrics = [Metric(f"{start['stage']}/{k}", float(v), now_ms(), 0) for k, v in summary.items()]
    store.client.log_batch(parent_id, metrics=metrics[:900])


def settle(store: Store, parent_id: str) -> None:
    """The parent runs while a child runs; then it has the worst status among the last executions of its stages."""
    with store.lock("parents"):
        latest: dict[str, str] = {}
        for child in _search(store, f"tags.`mlflow.parentRunId` = '{parent_id}'"):
            if child.info.status == "RUNNING":
                return
            latest.setdefault(child.data.tags[STAGE], child.info.status)
        worst = next((s for s in ("FAILED", "KILLED") if s in latest.values()), "FINISHED")
        store.client.set_terminated(parent_id, status=worst)


def close_orphans(store: Store) -> list[str]:
    """Runs that say RUNNING though their process is gone and no journal is left to tell more: closed as KILLED."""
    import socket

    running = _search(store, f"attributes.status = 'RUNNING' and tags.`process.host` = '{socket.gethostname()}'")
    closed = []
    for run in running:
        tags = run.data.tags
        owner = {k: tags.get(f"process.{k}") for k in OWNER}
        if tags.get(KIND) == "stage" and has_vanished(owner):
            store.client.set_tag(run.info.run_id, "ended_by", "process vanished")
            store.client.set_terminated(run.info.run_id, status="KILLED")
            settle(store, tags["mlflow.parentRunId"])
            closed.append(run.info.run_id)
    return closed
