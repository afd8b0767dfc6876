"""The registry on a terminal. What earlier runs couldn't send to MLflow is sent first, so that the list is complete."""

from __future__ import annotations

from collections.abc import Callable

from shift_diffusion.registry.aliases import decisions
from shift_diffusion.registry.gate import Decision
from shift_diffusion.registry.versions import METRIC, list_versions
from shift_diffusion.tracking.background import sweep
from shift_diffusion.tracking.journal import journal_root
from shift_diffusion.tracking.location import project_root, redact, tracking_uri
from shift_diffusion.tracking.store import Store, TrackingError, open_store


def open_registry() -> Store:
    """The store, after what lies in the journals was sent. Raises TrackingError where MLflow can't be reached."""
    try:
        store = open_store()
        sweep(journal_root(project_root()), store)
    except Exception as error:
        text = f"MLflow at {tracking_uri()} can't be used: {type(error).__name__}: {' '.join(str(error).split())}"
        raise TrackingError(redact(text)) from error
    return store


def print_versions(name: str) -> None:
    """One line per version: aliases, the gate's metric, when it was decided and why."""
    versions = list_versions(open_registry(), name)
    if not versions:
        print(f"{name}: no versions yet in {redact(tracking_uri())}; the pipeline's stage register makes the first")
        return
    print(f"{'version':>7}  {'aliases':<20} {'metric':<34} {'decision':<9} reason")
    for version in versions:
        metric = version.tags.get(METRIC, "")
        measured = f"{metric} {version.metrics[metric]:.5g}" if metric in version.metrics else "not measured"
        decision, reason = version.tags.get("decision", ""), version.tags.get("decision_reason", "")
        print(f"{version.number:>7}  {', '.join(version.aliases):<20} {measured:<34} {decision:<9} {reason}")


def print_decisions(name: str) -> None:
    store = open_registry()
    if not list_versions(store, name):
        print(f"{name}: no decisions yet")
        return
    for item in decisions(store, name):
        print(f"{item['time']}  version {item['version']:<4} {item['decision']:<9} {item['reason']}")


def change(action: Callable[[Store], Decision]) -> None:
    """Runs a promotion or roll back and says what came of it."""
    decision = action(open_registry())
    state = "is now champion" if decision.promote else "was left as it is"
    print(f"version {decision.version} {state}: {decision.reason}")
