"""Carries the events of a journal to MLflow. Every step may be repeated: a journal is sent at least once, seen once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shift_diffusion.tracking import parents
from shift_diffusion.tracking.journal import Journal
from shift_diffusion.tracking.location import redact
from shift_diffusion.tracking.store import Store

BATCH = 100  # MLflow accepts 1000 metrics, 100 parameters and 100 tags a request
EVENTS_AT_ONCE = 400


class _Batch:
    """Metrics, parameters and tags that wait for one request."""

    def __init__(self) -> None:
        self.metrics: list = []
        self.params: list = []
        self.tags: list = []

    def send(self, store: Store, run_id: str) -> None:
        while self.metrics or self.params or self.tags:
            part = self.metrics[: 9 * BATCH], self.params[:BATCH], self.tags[:BATCH]
            try:
                store.client.log_batch(run_id, *part)
            except Exception as error:
                if not is_refusal(error):
                    raise
                _send_one_by_one(store, run_id, part)
            del self.metrics[: 9 * BATCH], self.params[:BATCH], self.tags[:BATCH]


def is_refusal(error: Exception) -> bool:
    """Will the server say the same next time? Then one odd value must not hold back all that follows it."""
    # MLflow gives no code of its own to a path that leads out of the run
    refused_path = str(error).startswith("Invalid artifact path")
    return refused_path or getattr(error, "error_code", "") in (
        "INVALID_PARAMETER_VALUE",
        "BAD_REQUEST",
        "RESOURCE_ALREADY_EXISTS",
    )


def _send_one_by_one(store: Store, run_id: str, part: tuple[list, list, list]) -> None:
    for position, entities in enumerate(part):
        for entity in entities:
            lists: list[list] = [[], [], []]
            lists[position] = [entity]
            try:
                store.client.log_batch(run_id, *lists)
            except Exception as error:
                if not is_refusal(error):
                    raise
                _note_refusal(store, run_id, entity.key, error)


def _note_refusal(store: Store, run_id: str, what: str, error: Exception) -> None:
    store.client.set_tag(run_id, "refused", redact(f"{what}: {error}")[:1000])


def send(journal: Journal, store: Store) -> bool:
    """Sends what isn't sent yet; True once the run is closed on the server and the journal removed.

    The caller holds the journal's lock. Raises whatever MLflow raises; nothing is lost then.
    """
    state = journal.sent
    if "run_id" in state and _was_deleted(store, state["run_id"]):
        journal.remove()
        return True
    if "run_id" not in state:
        start = journal.first()
        if start is None:
            return False
        state |= parents.create_runs(store, journal.key, start)
        journal.set_sent(state)
    while events := list(_some(journal, state["offset"])):
        _apply(journal, store, state, [event for _, event in events])
        state["offset"] = events[-1][0]
        journal.set_sent(state)
        if events[-1][1]["kind"] == "end":
            journal.remove()
            return True
    return False


def _was_deleted(store: Store, run_id: str) -> bool:
    """Someone has deleted the run in MLflow: what is left of it isn't wanted any more."""
    try:
        return store.client.get_run(run_id).info.lifecycle_stage == "deleted"
    except Exception as error:
        if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
            return True
        raise


def _some(journal: Journal, offset: int):
    for count, item in enumerate(journal.read(offset), start=1):
        yield item
        if count == EVENTS_AT_ONCE or item[1]["kind"] == "end":
            return


def _apply(journal: Journal, store: Store, state: dict, events: list[dict]) -> None:
    batch, run_id = _Batch(), state["run_id"]
    for event in events:
        kind = event["kind"]
        if kind in _COLLECT:
            _COLLECT[kind](batch, event)
        elif kind == "artifact":
            _send_artifact(journal, store, run_id, event)
        elif kind == "dataset":
            store.client.log_inputs(run_id, [_dataset_input(event)])
        elif kind == "end":
            batch.send(store, run_id)
            _end(store, state, event)
    batch.send(store, run_id)
    summary = {
        name: value for e in events if e["kind"] == "metrics" and e["summary"] for name, value in e["values"].items()
    }
    parents.copy_summary(store, state["parent_id"], journal.first() or {}, summary)


def _collect_metrics(batch: _Batch, event: dict) -> None:
    from mlflow.entities import Metric

    batch.metrics += [Metric(k, float(v), event["time"], event["step"]) for k, v in event["values"].items()]


def _collect_params(batch: _Batch, event: dict) -> None:
    from mlflow.entities import Param

    batch.params += [Param(k, v) for k, v in event["values"].items()]


def _collect_tags(batch: _Batch, event: dict) -> None:
    from mlflow.entities import RunTag

    batch.tags += [RunTag(k, v) for k, v in event["values"].items()]


_COLLECT = {"metrics": _collect_metrics, "params": _collect_params, "tags": _collect_tags}


def _send_artifact(journal: Journal, store: Store, run_id: str, event: dict) -> None:
    """A place for artifacts that refuses to take them (read-only, full) must not hold back the numbers behind it."""
    path = journal.folder / event["file"]
    try:
        if path.is_dir():
            store.client.log_artifacts(run_id, str(path), "/".join(filter(None, (event["folder"], path.name))))
        elif path.is_file():
            store.client.log_artifact(run_id, str(path), event["folder"])
    except Exception as error:
        if isinstance(error, ConnectionError) or not (isinstance(error, OSError) or is_refusal(error)):
            raise
        store.client.set_tag(run_id, "artifacts_missing", redact(f"{Path(event['file']).name}: {error}")[:1000])


def _dataset_input(event: dict) -> Any:
    import json

    from mlflow.entities import Dataset, DatasetInput, InputTag

    profile = {"num_images": event["num_images"], "content_hash": event["content_hash"]}
    dataset = Dataset(
        name=event["name"],
        digest=event["content_hash"][:36],
        source_type="local",
        source=json.dumps({"uri": event["source"]}),
        profile=json.dumps(profile),
    )
    return DatasetInput(dataset, tags=[InputTag("mlflow.data.context", event["context"])])


def _end(store: Store, state: dict, event: dict) -> None:
    store.client.set_terminated(state["run_id"], status=event["status"], end_time=event["time"])
    parents.settle(store, state["parent_id"])
