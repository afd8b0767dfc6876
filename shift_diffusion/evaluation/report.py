"""One self-contained HTML page of a pipeline run: no file beside it, no network, no script."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shift_diffusion.config import ConfigError, read_yaml
from shift_diffusion.files import read_json, write_text_atomic

SCORES = ("fid", "kid", "precision", "recall")

PICTURES = {  # file under reports/ -> what it shows
    "evaluate/grid.png": "Generated pictures, the first ones and not the best, with their prompts",
    "evaluate/trajectory.png": "From noise to picture: what the sampler sees, and under it the model's estimate",
    "evaluate/neighbors.png": "Generated pictures that come nearest to a training picture, above that picture",
    "evaluate/spectrum.png": "Power over spatial frequency, generated against real",
    "evaluate/psnr.png": "Estimates of held-out pictures, by noise level",
    "evaluate/fid_vs_images.png": "FID against training images seen, a point per stage",
    "evaluate/fid_vs_steps.png": "FID against sampling steps",
    "benchmark/chart.png": "Variants of the model side by side",
    "stage-1/curves.png": "Stage 1, loss",
    "stage-1/samples.png": "Stage 1, samples",
    "stage-2/curves.png": "Stage 2, loss",
    "stage-2/samples.png": "Stage 2, samples",
    "stage-3/curves.png": "Stage 3, loss",
    "stage-3/samples.png": "Stage 3, samples",
    "prepare/contact_sheet.png": "Real pictures with their captions",
}

STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 0 auto; padding: 1rem; max-width: 60rem; }
h1 { font-size: 1.5rem; line-height: 1.2; } h2 { font-size: 1.2rem; margin-top: 2rem; }
figure { margin: 1rem 0; } figcaption { font-size: .9rem; opacity: .8; }
img { max-width: 100%; height: auto; background: #fff; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
.cards { display: flex; flex-wrap: wrap; gap: .75rem; }
.card { background: var(--soft); border-radius: .5rem; padding: .5rem .75rem; min-width: 6rem; }
.card b { display: block; font-size: 1.25rem; } .card span { font-size: .85rem; }
pre { overflow-x: auto; font-size: .8rem; background: var(--soft); padding: .75rem; border-radius: .5rem; }
code { overflow-wrap: anywhere; } .finding { border-left: .25rem solid #d90; padding-left: .75rem; margin: 1rem 0; }
"""


def write_report(project_root: str | Path, out: str | Path) -> Path:
    """Writes the page of the run whose reports, params.yaml and dvc.lock lie under `project_root`.

    What a run hasn't made (a stage that was left out) is left out of the page.

    Raises:
        ConfigError: there are no reports at all.
    """
    root, out = Path(project_root), Path(out)
    if not any((root / "reports").glob("*/*")):
        raise ConfigError([f"{root / 'reports'}: nothing to report yet; run the pipeline first: dvc repro"])
    body = "\n".join(part for section in _sections(root) if (part := section))
    page = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>Shift Diffusion: report of a run</title><link rel="icon" href="data:,"><style>{STYLE}</style></head>\n'
        f"<body><h1>Shift Diffusion: report of a run</h1>\n{body}\n</body></html>\n"
    )
    write_text_atomic(out, page)
    return out


def _sections(root: Path) -> Iterator[str]:
    reports = root / "reports"
    metrics = _json(reports / "evaluate/metrics.json")
    yield _headlines(metrics)
    yield from (_figure(reports / name, text) for name, text in PICTURES.items() if name.startswith("evaluate/"))
    yield _diagnosis(_json(reports / "evaluate/diagnosis.json"))
    yield "<h2>Training</h2>" + "".join(_figure(reports / n, t) for n, t in PICTURES.items() if n.startswith("stage-"))
    yield _figure(reports / "prepare/contact_sheet.png", PICTURES["prepare/contact_sheet.png"])
    yield _figure(reports / "benchmark/chart.png", PICTURES["benchmark/chart.png"])
    for title, name in _metric_files(reports):
        yield _table(title, _json(reports / name))
    yield _decision(_json(reports / "register.json"))
    yield _lineage(root / "dvc.lock")
    yield _parameters(root / "params.yaml")


def _metric_files(reports: Path) -> Iterator[tuple[str, str]]:
    for name in ("evaluate", "benchmark", "quantize", "stage-1", "stage-2", "stage-3", "prepare"):
        if (reports / name / "metrics.json").exists():
            yield f"Numbers of {name}", f"{name}/metrics.json"


def _json(path: Path) -> Any:
    return read_json(path) if path.exists() else None


def _headlines(metrics: Mapping[str, float] | None) -> str:
    if not metrics:
        return ""
    cards = []
    for name, value in metrics.items():
        score = name.split("_")[0] if name.split("_")[0] in SCORES else name
        if score not in (*SCORES, "caption_match", "psnr") or "_floor_" in name or name.endswith(("_std", "_size")):
            continue
        spread = f" ± {metrics[f'{name}_std']:.2g}" if f"{name}_std" in metrics else ""
        floor = metrics.get(name.replace(f"{score}_", f"{score}_floor_", 1)) if score in SCORES else None
        beside = f"<br>real pictures {floor:.4g}" if floor is not None else ""
        cards.append(f'<div class="card"><b>{value:.4g}{spread}</b><span>{html.escape(name)}{beside}</span></div>')
    count = metrics.get("num_samples", 0)
    seeds = metrics.get("num_seeds", 1)
    return f'<p>{count:g} pictures for each of {seeds:g} seeds.</p><div class="cards">{"".join(cards)}</div>'


def _figure(path: Path, text: str) -> str:
    if not path.exists():
        return ""
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    caption = html.escape(text)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
    )


def _diagnosis(findings: list[Mapping[str, str]] | None) -> str:
    if findings is None:
        return ""
    blocks = "".join(
        f'<div class="finding"><b>{html.escape(f["symptom"])}</b><br>{html.escape(f["evidence"])}'
        f"<br>Change: <code>{html.escape(f['change'])}</code></div>"
        for f in findings
    )
    return f"<h2>Diagnosis</h2>{blocks or '<p>Nothing to complain about.</p>'}"


def _flat(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _text(value: Any) -> str:
    return html.escape(f"{value:.5g}" if isinstance(value, float) else str(value))


def _rows(pairs: Iterator[tuple[str, Any]]) -> str:
    return "".join(f"<tr><th><code>{html.escape(str(k))}</code></th><td>{_text(v)}</td></tr>" for k, v in pairs)


def _table(title: str, content: Any) -> str:
    if not isinstance(content, Mapping):
        return ""
    head = f"<h2>{html.escape(title)}</h2>"
    return f'{head}<div class="scroll"><table>{_rows(_flat(content))}</table></div>'


def _decision(decision: Mapping[str, Any] | None) -> str:
    return _table("Registry decision", decision) if decision else ""


def _lineage(lock: Path) -> str:
    """Which bytes went into each stage and which came out, by the hashes of dvc.lock."""
    if not lock.exists():
        return ""
    rows = []
    for name, stage in read_yaml(lock).get("stages", {}).items():
        cells = ("<br>".join(_hashed(item) for item in stage.get(side, [])) for side in ("deps", "outs"))
        rows.append(f"<tr><th>{html.escape(name)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>")
    head = "<tr><th>stage</th><th>made from</th><th>made</th></tr>"
    return f'<h2>Lineage</h2><div class="scroll"><table>{head}{"".join(rows)}</table></div>'


def _hashed(item: Mapping[str, Any]) -> str:
    return f"<code>{html.escape(str(item['path']))} {html.escape(str(item.get('md5', ''))[:8])}</code>"


def _parameters(path: Path) -> str:
    if not path.exists():
        return ""
    return f"<h2>Parameters</h2><pre>{html.escape(path.read_text(encoding='utf-8'))}</pre>"
