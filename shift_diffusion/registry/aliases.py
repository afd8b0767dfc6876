"""Who is champion: promotion, roll back, and the record of every decision."""

from __future__ import annotations

import json
from datetime import UTC, datetime

from shift_diffusion.registry.gate import Decision, gate
from shift_diffusion.registry.versions import (
    CHALLENGER,
    CHAMPION,
    METRIC,
    PREVIOUS,
    Version,
    list_versions,
    set_tags,
    with_alias,
)
from shift_diffusion.tracking.store import Store, TrackingError

DECISION_PREFIX = "decision."


def decide(store: Store, name: str, version: Version, min_improvement: float, promote: bool) -> Decision:
    """Lets `version` challenge the champion. The caller holds the lock `registry`.

    Where the champion was deleted, its predecessor is the one to beat, and takes the title back if it isn't beaten.

    Args:
        promote: False = judge and record only.
    """
    metric = version.tags[METRIC]
    champion, deputy = with_alias(store, name, CHAMPION), None
    if champion is None:
        deputy = with_alias(store, name, PREVIOUS)
    incumbent = champion or deputy
    found = gate(version.candidate(metric), incumbent.candidate(metric) if incumbent else None, min_improvement)
    if champion is None or champion.number != version.number:
        store.client.set_registered_model_alias(name, CHALLENGER, str(version.number))
    if found.promote and not promote:
        found = Decision(False, f"{found.reason}; register.promote is off", found.version, found.champion)
    if found.promote:
        crown(store, name, version.number, champion.number if champion else None)
    elif deputy is not None and promote:
        crown(store, name, deputy.number, None)
        reason = f"{found.reason}; the champion was deleted, version {deputy.number} takes its place again"
        found = Decision(False, reason, found.version, found.champion)
    record_decision(store, name, found)
    return found


def crown(store: Store, name: str, number: int, before: int | None) -> None:
    """Moves the alias. The predecessor is remembered first: killed in between, both point to the old champion."""
    if before is not None and before != number:
        store.client.set_registered_model_alias(name, PREVIOUS, str(before))
    store.client.set_registered_model_alias(name, CHAMPION, str(number))
    drop_alias_of(store, name, CHALLENGER, number)
    if before is None:
        drop_alias_of(store, name, PREVIOUS, number)


def drop_alias_of(store: Store, name: str, alias: str, number: int) -> None:
    version = with_alias(store, name, alias)
    if version is not None and version.number == number:
        store.client.delete_registered_model_alias(name, alias)


def promote(store: Store, name: str, number: int, reason: str) -> Decision:
    """A person's decision: `number` becomes champion whatever the gate says. Raises TrackingError if unknown."""
    with store.lock("registry"):
        known = [version.number for version in list_versions(store, name)]
        if number not in known:
            listed = ", ".join(map(str, known)) or "none"
            raise TrackingError(f"model {name} has no version {number}; versions: {listed}")
        champion = with_alias(store, name, CHAMPION)
        if champion is not None and champion.number == number:
            return Decision(False, f"version {number} is the champion already", number, number)
        crown(store, name, number, champion.number if champion else None)
        decision = Decision(True, reason, number, champion.number if champion else None)
        record_decision(store, name, decision)
        return decision


def rollback(store: Store, name: str) -> Decision:
    """Makes the previous champion champion again; done twice, it is undone. Raises TrackingError if there is none."""
    with store.lock("registry"):
        previous, champion = with_alias(store, name, PREVIOUS), with_alias(store, name, CHAMPION)
        if previous is None:
            raise TrackingError(f"model {name} has no previous champion to go back to")
        crown(store, name, previous.number, champion.number if champion else None)
        was = f"version {champion.number}" if champion else "a deleted version"
        decision = Decision(True, f"rolled back from {was}", previous.number, champion.number if champion else None)
        record_decision(store, name, decision)
        return decision


def record_decision(store: Store, name: str, decision: Decision) -> None:
    """On the version (the last one about it) and on the registered model (all of them, by time)."""
    now = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    verdict = "promoted" if decision.promote else "kept"
    content = {"version": decision.version, "champion_before": decision.champion, "decision": verdict}
    content["reason"] = decision.reason
    set_tags(
        store, name, decision.version, {"decision": verdict, "decision_reason": decision.reason, "decision_time": now}
    )
    store.client.set_registered_model_tag(name, f"{DECISION_PREFIX}{now.replace(':', '')}", json.dumps(content))


def decisions(store: Store, name: str) -> list[dict]:
    """Every decision ever taken, oldest first, as `{"time", "version", "champion_before", "decision", "reason"}`."""
    tags = store.client.get_registered_model(name).tags
    found = [(k[len(DECISION_PREFIX) :], v) for k, v in tags.items() if k.startswith(DECISION_PREFIX)]
    return [{"time": time, **json.loads(text)} for time, text in sorted(found)]
