"""What ails a run: symptoms, the numbers that show them, and the change of params.yaml that treats each."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from shift_diffusion.config import ConfigError
from shift_diffusion.evaluation.finding import Evidence, Finding
from shift_diffusion.evaluation.sample_rules import sample_findings
from shift_diffusion.evaluation.training_rules import training_findings
from shift_diffusion.files import write_json, write_text_atomic


def diagnose(evidence: Evidence) -> list[Finding]:
    """All findings, training first: a fault there explains most of what the pictures show. [] = healthy."""
    found: list[Finding] = []
    for number, record in sorted(evidence.stages.items()):
        found += training_findings(number, record, evidence.params)
    return [*found, *sample_findings(evidence.evaluation, evidence.params)]


def as_text(findings: Sequence[Finding]) -> str:
    if not findings:
        return "diagnosis: nothing to complain about\n"
    blocks = [f"{f.symptom}\n    evidence: {f.evidence}\n    change:   {f.change}" for f in findings]
    return f"diagnosis: {len(findings)} finding{'s' if len(findings) > 1 else ''}\n\n" + "\n\n".join(blocks) + "\n"


def write_diagnosis(reports: str | Path, out: str | Path) -> list[Finding]:
    """Diagnoses the run under `reports` into out/diagnosis.json and out/diagnosis.txt."""
    findings = diagnose(Evidence.read(reports))
    write_json(Path(out) / "diagnosis.json", [asdict(finding) for finding in findings])
    write_text_atomic(Path(out) / "diagnosis.txt", as_text(findings))
    return findings


def main(folder: str | Path = "reports") -> int:
    """Prints the diagnosis of the run whose reports are in `folder` (or of the project that holds them).

    Returns:
        0 whether or not something was found, 2 when there is nothing to diagnose.
    """
    folder = Path(folder)
    try:
        findings = diagnose(Evidence.read(folder / "reports" if (folder / "reports").is_dir() else folder))
    except ConfigError as error:
        print("\n".join(f"error: {problem}" for problem in error.problems), file=sys.stderr)
        return 2
    print(as_text(findings), end="")
    return 0
