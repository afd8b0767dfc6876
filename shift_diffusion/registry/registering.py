"""A trained model becomes a version of the registry, once, and challenges the champion."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shift_diffusion.config import ConfigError, Evaluate, Register
from shift_diffusion.registry import versions
from shift_diffusion.registry.aliases import decide
from shift_diffusion.registry.gate import Decision
from shift_diffusion.registry.packaging import model_hash, save_pyfunc
from shift_diffusion.serving.bundle import FORMAT_VERSION, write_bundle
from shift_diffusion.tracking.location import code_root, redact
from shift_diffusion.tracking.record import git_state
from shift_diffusion.tracking.run import NullRun
from shift_diffusion.tracking.store import Store, TrackingError, open_store

ARTIFACT_FOLDER = "model"
DEFAULTS = ("sampler", "num_steps", "guidance_scale", "spacing")


def register_model(
    store: Store,
    run_id: str,
    model_folder: Path,
    int8_folder: Path | None,
    *,
    name: str,
    metric: str,
    metrics: Mapping[str, float],
    conditions: Mapping[str, Any],
    defaults: Mapping[str, Any],
    min_improvement: float = 0.0,
    promote: bool = True,
    tags: Mapping[str, str] | None = None,
) -> Decision:
    """Registers the model (or finds the version it already is), lets the gate decide, and records why.

    Args:
        run_id: the run of the stage that registers; the version's files become its artifacts.
        model_folder, int8_folder: outs of stage-3 and quantize (None = without).
        metric: key of `metrics` that the gate compares, lower is better.
        metrics: numbers to store with the version.
        conditions: what the metric was measured under; the gate compares only versions with equal ones.
        defaults: sampler, num_steps, guidance_scale and spacing of a request that doesn't name them.
        promote: False = register and judge, but leave the champion alone.

    Raises: whatever MLflow raises. A registration that can't be made must not look like one.
    """
    identity = model_hash(model_folder, int8_folder)
    measured = versions.measurement_tags(metric, dict(metrics), dict(conditions))
    with store.lock("registry"):
        version = versions.with_hash(store, name, identity)
        if version is None:
            own = {versions.MODEL_HASH: identity, "format_version": str(FORMAT_VERSION), **measured, **(tags or {})}
            number = _create(store, name, run_id, model_folder, int8_folder, dict(defaults), identity, own)
        else:  # the same weights, measured again, perhaps under other conditions
            number = version.number
            versions.set_tags(store, name, number, measured)
        fresh = next(v for v in versions.list_versions(store, name) if v.number == number)
        return decide(store, name, fresh, min_improvement, promote)


def _create(
    store: Store,
    name: str,
    run_id: str,
    model_folder: Path,
    int8_folder: Path | None,
    defaults: dict[str, Any],
    identity: str,
    tags: dict[str, str],
) -> int:
    with tempfile.TemporaryDirectory() as folder:
        out, bundle = Path(folder) / "model", Path(folder) / "bundle"
        settings = {key: defaults[key] for key in DEFAULTS}
        write_bundle(bundle, model_folder, int8_folder, settings, identity[:12])
        save_pyfunc(out, bundle, settings, {"model_hash": identity, "format_version": FORMAT_VERSION})
        store.client.log_artifacts(run_id, str(out), ARTIFACT_FOLDER)
    _ensure_registered_model(store, name)
    source = f"{store.client.get_run(run_id).info.artifact_uri}/{ARTIFACT_FOLDER}"
    created = store.client.create_model_version(name, source, run_id=run_id, tags=tags)
    return int(created.version)


def _ensure_registered_model(store: Store, name: str) -> None:
    try:
        store.client.get_registered_model(name)
    except Exception as error:
        if not versions.is_missing(error):
            raise
        store.client.create_registered_model(
            name, description="Diffusion models of this project; see docs/operations.md"
        )


def register_outs(
    run: NullRun,
    model_folder: Path,
    int8_folder: Path,
    section: Register,
    evaluate: Evaluate,
    metrics: Mapping[str, float],
    conditions: Mapping[str, Any],
) -> dict[str, Any]:
    """What the stage `register` does: `register_model` with this run's origin; returns the content of register.json.

    Raises: TrackingError when MLflow is away or refuses, after bounded retries.
    """
    run_id = run.require_id()
    code = git_state(code_root())
    origin = {
        "git.commit": code["commit"] or "",
        "git.dirty": str(code["dirty"]).lower(),
        "pipeline_run": run.parent_id,
    }
    try:
        store = open_store()
        decision = register_model(
            store,
            run_id,
            model_folder,
            int8_folder if int8_folder.is_dir() else None,
            name=section.name,
            metric=section.metric,
            metrics=metrics,
            conditions=conditions,
            defaults=evaluate.model_dump(),
            min_improvement=section.min_improvement,
            promote=section.promote,
            tags=origin,
        )
        champion = versions.with_alias(store, section.name, versions.CHAMPION)
    except Exception as error:
        if isinstance(error, ConfigError):
            raise
        raise TrackingError(redact(f"{type(error).__name__}: {error}")) from error
    verdict = "promoted" if decision.promote else "kept"
    run.set_tag("decision", f"{verdict}: {decision.reason}")
    return {
        "name": section.name,
        "model": f"models:/{section.name}/{decision.version}",
        "version": decision.version,
        "promoted": champion is not None and champion.number == decision.version,
        "champion": champion.number if champion else None,
        "decision": verdict,
        "reason": decision.reason,
        "metric": section.metric,
        "value": metrics.get(section.metric),
        "run_id": run_id,
    }
