"""The registered versions of one model: what is stored with each, and how to find it again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from shift_diffusion.registry.gate import Candidate
from shift_diffusion.tracking.store import Store

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
MODEL_HASH, METRIC = "model_hash", "gate.metric"
METRIC_PREFIX, CONDITION_PREFIX = "metric.", "condition."


@dataclass(frozen=True)
class Version:
    """A registered version. metrics and conditions are stored as tags, aliases are where the registry points now."""

    number: int
    run_id: str | None
    source: str
    aliases: tuple[str, ...]
    tags: dict[str, str]

    @property
    def model_hash(self) -> str:
        return self.tags.get(MODEL_HASH, "")

    @property
    def metrics(self) -> dict[str, float]:
        return {k[len(METRIC_PREFIX) :]: _number(v) for k, v in self.tags.items() if k.startswith(METRIC_PREFIX)}

    def candidate(self, metric: str) -> Candidate:
        conditions = {k[len(CONDITION_PREFIX) :]: v for k, v in self.tags.items() if k.startswith(CONDITION_PREFIX)}
        return Candidate(self.number, metric, self.metrics.get(metric), conditions)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return float("nan")


def is_missing(error: Exception) -> bool:
    """Does MLflow's exception say that the model, version or alias doesn't exist (and not that a server is away)?"""
    code = getattr(error, "error_code", "")
    return code == "RESOURCE_DOES_NOT_EXIST" or (code == "INVALID_PARAMETER_VALUE" and "alias" in str(error).lower())


def list_versions(store: Store, name: str) -> list[Version]:
    """All versions, newest first, with the aliases they have now; empty when nothing was registered yet."""
    try:
        aliases = store.client.get_registered_model(name).aliases
    except Exception as error:
        if is_missing(error):
            return []
        raise
    found = store.client.search_model_versions(f"name = '{name}'", max_results=1000)
    versions = [_version(item, aliases) for item in found]
    return sorted(versions, key=lambda version: version.number, reverse=True)


def _version(item: Any, aliases: dict[str, str]) -> Version:
    number = int(item.version)
    own = tuple(sorted(alias for alias, target in aliases.items() if int(target) == number))
    return Version(number, item.run_id, item.source, own, dict(item.tags))


def with_alias(store: Store, name: str, alias: str) -> Version | None:
    """The version an alias points to, None where there is none (never set, or its version was deleted)."""
    return next((version for version in list_versions(store, name) if alias in version.aliases), None)


def with_hash(store: Store, name: str, model_hash: str) -> Version | None:
    return next((version for version in list_versions(store, name) if version.model_hash == model_hash), None)


def measurement_tags(metric: str, metrics: dict[str, float], conditions: dict[str, Any]) -> dict[str, str]:
    """Every number the gate (or a person) compares, as tags; repr keeps all digits of a float."""
    tags = {f"{METRIC_PREFIX}{k}": repr(float(v)) for k, v in metrics.items()}
    return tags | {f"{CONDITION_PREFIX}{k}": str(v) for k, v in conditions.items()} | {METRIC: metric}


def set_tags(store: Store, name: str, number: int, tags: dict[str, str]) -> None:
    for key, value in tags.items():
        store.client.set_model_version_tag(name, str(number), key, value)
