"""dvc.yaml against the code: code deps are what a stage imports, params are what it loads."""

import ast
import subprocess

import pytest
import yaml

from tests.imports import ROOT, closure

# Modules that read, report and draw: their edits never change what a stage learns or measures.
PRESENTATION = frozenset(
    f"shift_diffusion.{name}"
    for name in ("config", "config_rules", "tracking", "progress", "quiet", "stage", "files", "pictures", "plots")
)
STAGES = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]


def _script(stage: str):
    words = STAGES[stage]["cmd"].split()
    return ROOT / (words[words.index("-m") + 1].replace(".", "/") + ".py")


def _code_deps(stage: str) -> set[str]:
    return {dep for dep in STAGES[stage].get("deps", []) if dep.startswith(("shift_diffusion", "stages"))}


@pytest.mark.parametrize("stage", STAGES)
def test_code_deps_are_the_imports(stage):
    script = _script(stage)
    files = {str(path.relative_to(ROOT)) for path in closure(script, PRESENTATION) | {script}}
    files = {file for file in files if not file.endswith("__init__.py")}
    declared = _code_deps(stage)
    folders = {dep for dep in declared if not dep.endswith(".py")}
    covered = {file for file in files for folder in folders if file.startswith(folder + "/")}
    missing = sorted(files - covered - declared)
    stale = sorted(dep for dep in declared - files if not any(file.startswith(dep + "/") for file in files))
    assert not missing, f"dvc.yaml, stage {stage}: add to deps: {missing}"
    assert not stale, f"dvc.yaml, stage {stage}: remove from deps: {stale}"


def _sections_loaded(stage: str) -> set[str]:
    """Attributes read off a name `params` in the stage's script, in its full dotted form."""
    found = set()
    for node in ast.walk(ast.parse(_script(stage).read_text())):
        parts = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and node.id == "params":
            found.add(parts[-1].rstrip("_"))
    return found


@pytest.mark.parametrize("stage", [name for name in STAGES if not name.startswith("stage-")])
def test_params_are_the_sections_the_stage_loads(stage):
    declared = {param.split(".")[0] for param in STAGES[stage].get("params", [])}
    loaded = _sections_loaded(stage)
    assert loaded <= declared, f"dvc.yaml, stage {stage}: params lacks {sorted(loaded - declared)}"
    assert declared <= loaded, f"dvc.yaml, stage {stage}: params has {sorted(declared - loaded)}, which it never loads"


def _cached_outs() -> list[str]:
    entries = [e for stage in STAGES.values() for kind in ("outs", "metrics", "plots") for e in stage.get(kind, [])]
    named = [(entry, {}) if isinstance(entry, str) else next(iter(entry.items())) for entry in entries]
    return [path for path, options in named if options.get("cache", True)]


def test_cached_outs_are_ignored_by_rules_in_git():
    """Case 31: DVC takes the ignore entries it makes itself back when a later stage fails; these it never makes."""
    outs = _cached_outs()
    assert len(outs) > 10
    command = ["git", "check-ignore", "--verbose", "--no-index", *outs]
    rules = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
    assert [rule.split("\t")[1] for rule in rules] == outs
    assert {rule.split(":")[0] for rule in rules} == {".gitignore"}


def test_only_what_quantize_let_pass_is_registered():
    """Case 26: a variant beyond its limits fails the stage, and `register` waits for that stage's out."""
    assert "models/int8" in STAGES["quantize"]["outs"]
    assert "models/int8" in STAGES["register"]["deps"]


def test_no_evaluation_code_can_retrain():
    for stage in ("stage-1", "stage-2", "stage-3"):
        assert not [dep for dep in STAGES[stage]["deps"] if "evaluation" in dep]
        assert any(dep.startswith("shift_diffusion/models") for dep in STAGES[stage]["deps"])
