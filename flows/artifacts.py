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


def publish_results(root: Path, heading: str, reason: str | None = None, new: list[str] | None = None) -> None:
    """Creates the artifacts `report` and, where MLflow has a page to open, `mlflow` for the running flow."""
    create_markdown_artifact(report(root, heading, reason, new), key="report", description="metrics and samples")
    if link := mlflow_link(root):
        create_link_artifact(link, link_text="MLflow run", key="mlflow", description="parameters, curves, models")


def report(root: Path, heading: str, reason: str | None = None, new: list[str] | None = None) -> str:
    """Markdown: the gate's reason, what was new, the sample grid, one table of all stages' numbers."""
    lines = [f"# {heading}", ""]
    if reason:
        lines += [f"**{reason}**", ""]
    lines += [f"- new: {item}" for item in new or []]
    if picture := grid_as_markdown(root / GRID):
        lines += ["", "## Samples", "", picture]
    lines += ["", "## Metrics", "", "| stage | metric | value |", "| --- | --- | ---: |"]
    lines += [f"| {stage} | {name} | {_number(value)} |" for stage, name, value in read_metrics(root)]
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


def mlflow_link(root: Path) -> str | None:
    """The page of the run that registered the model; None for a store in files, which has no page to open."""
    from shift_diffusion import tracking

    uri = tracking.tracking_uri()
    if not uri.startswith(("http://", "https://")):
        return None
    page = tracking.redact(uri).rstrip("/")
    registered = root / "reports/register.json"
    run = json.loads(registered.read_text(encoding="utf-8")).get("run_id") if registered.is_file() else None
    return f"{page}/#/runs/{run}" if run else page
