"""What a finished flow run shows in the Prefect UI: metrics, the sample grid, where MLflow keeps the rest."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

from prefect.artifacts import create_link_artifact, create_markdown_artifact

GRID = Path("reports/evaluate/grid.png")
GRID_SIDE = 900  # pixels: artifacts live in Prefect's database


def publish_results(root: Path, heading: str = "Pipeline") -> None:
    """Creates the artifacts `metrics` and `mlflow` for the running flow."""
    create_markdown_artifact(report(root, heading), key="metrics", description="metrics of every stage and samples")
    if link := mlflow_link():
        create_link_artifact(link, link_text="MLflow runs", key="mlflow", description="parameters, curves, models")


def report(root: Path, heading: str, reason: str | None = None) -> str:
    """Markdown: the reason (if any), one table of all stages' numbers, the sample grid."""
    lines = [f"# {heading}", ""]
    if reason:
        lines += [f"**{reason}**", ""]
    lines += ["| stage | metric | value |", "| --- | --- | ---: |"]
    lines += [f"| {stage} | {name} | {_number(value)} |" for stage, name, value in read_metrics(root)]
    if picture := grid_as_markdown(root / GRID):
        lines += ["", "## Samples", "", picture]
    return "\n".join(lines)


def read_metrics(root: Path) -> list[tuple[str, str, float]]:
    """(stage, metric, value) from every reports/STAGE/metrics.json; nested keys joined by a dot."""
    rows = []
    for path in sorted((root / "reports").glob("*/metrics.json")):
        numbers = _flatten(json.loads(path.read_text(encoding="utf-8")))
        rows += [(path.parent.name, name, value) for name, value in numbers]
    return rows


def _flatten(content: Any, prefix: str = "") -> list[tuple[str, float]]:
    if isinstance(content, dict):
        return [
            pair for key, value in content.items() for pair in _flatten(value, f"{prefix}.{key}" if prefix else key)
        ]
    is_number = isinstance(content, int | float) and not isinstance(content, bool)
    return [(prefix, content)] if is_number else []


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"


def grid_as_markdown(path: Path) -> str | None:
    """The picture inside the text, as a data address: the Prefect server can't read the project's files."""
    if not path.is_file():
        return None
    from PIL import Image

    with Image.open(path) as picture:
        small = picture.convert("RGB")
        small.thumbnail((GRID_SIDE, GRID_SIDE))
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=85)
    return f"![samples](data:image/jpeg;base64,{base64.b64encode(buffer.getvalue()).decode()})"


def mlflow_link() -> str | None:
    """The tracking server's address; None for a store in files, which has no page to open."""
    from shift_diffusion import tracking

    uri = tracking.tracking_uri()
    return tracking.redact(uri) if uri.startswith(("http://", "https://")) else None
