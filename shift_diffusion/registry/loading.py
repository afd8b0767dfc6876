"""From `models:/NAME@ALIAS`, `models:/NAME/VERSION` or a folder to a pipeline; no code of the registry is run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from shift_diffusion.config import ConfigError
from shift_diffusion.sampling import Pipeline
from shift_diffusion.serving.bundle import FLOAT, load_variant, read_bundle
from shift_diffusion.tracking.location import redact
from shift_diffusion.tracking.store import Store, TrackingError, open_store

DEFAULT_MODEL = "models:/shift-diffusion@champion"
_MODEL_URI = re.compile(r"^models:/(?P<name>[A-Za-z0-9_.-]+)(?:@(?P<alias>[\w-]+)|/(?P<version>\d+))$")


@dataclass(frozen=True)
class LoadedModel:
    """pipeline, what a PNG should say about its model, and the settings it was evaluated with."""

    pipeline: Pipeline
    label: str
    defaults: dict


def load_champion(name: str = "shift-diffusion", variant: str = FLOAT, device: str = "cpu") -> LoadedModel:
    return load_model(f"models:/{name}@champion", variant, device)


def load_model(where: str, variant: str = FLOAT, device: str = "cpu") -> LoadedModel:
    """Loads a registered version, a bundle, or the folder of a trained stage.

    Raises:
        ConfigError: the address or folder isn't one.
        TrackingError: the registry can't be reached or has no such version.
    """
    if not where.startswith("models:"):
        return _from_folder(Path(where), variant, device)
    found = _MODEL_URI.match(where)
    if found is None:
        raise ConfigError(
            [f"model: '{where}' is not allowed; allowed: models:/NAME@ALIAS, models:/NAME/NUMBER, a folder"]
        )
    name, version, folder = fetch(**found.groupdict())
    bundle = read_bundle(folder)
    label = f"{name} version {version} ({bundle['model']})"
    return LoadedModel(load_variant(folder, variant, device), label, bundle["defaults"])


def _from_folder(folder: Path, variant: str, device: str) -> LoadedModel:
    if not folder.is_dir():
        raise ConfigError(
            [f"model: '{folder}' is not a folder; give models:/NAME@ALIAS, models:/NAME/NUMBER or a folder"]
        )
    if (folder / "bundle.json").is_file():
        bundle = read_bundle(folder)
        return LoadedModel(load_variant(folder, variant, device), f"bundle {bundle['model']}", bundle["defaults"])
    if variant != FLOAT:
        raise ConfigError([f"variant: '{variant}' is not in '{folder}', a trained stage's folder; allowed: {FLOAT}"])
    return LoadedModel(Pipeline.load(folder, device), str(folder), {})


def fetch(name: str, alias: str | None = None, version: str | None = None, store: Store | None = None):
    """Downloads a version's bundle; returns (name, version number, bundle folder)."""
    import mlflow.artifacts

    try:
        store = store or open_store()
        if version is None:
            version = store.client.get_model_version_by_alias(name, alias).version
        source = store.client.get_model_version_download_uri(name, str(version))
        folder = mlflow.artifacts.download_artifacts(artifact_uri=f"{source}/artifacts/bundle", tracking_uri=store.uri)
    except Exception as error:
        wanted = f"models:/{name}" + (f"@{alias}" if alias else f"/{version}")
        raise TrackingError(redact(f"{wanted} can't be loaded: {' '.join(str(error).split())}")) from error
    return name, int(version), Path(folder)
