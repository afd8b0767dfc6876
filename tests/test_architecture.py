"""The house rules of the design: who may import whom, what may be read, how long a door may be."""

import re

import pytest

from tests.imports import ROOT, imports_of, module_name, project_files

# A room may import from these rooms besides itself. A name missing here is a new room: say what it may enter.
LEAVES = {"config", "config_rules", "files", "progress", "quiet", "pictures", "plots", "runtime", "stage"}
MAY_ENTER = {
    "process": LEAVES,
    "models": LEAVES,
    "data": LEAVES | {"models"},  # the type of a text condition
    "training": LEAVES | {"process", "models", "data"},
    "evaluation": LEAVES | {"data", "models", "process"},
    "quantization": LEAVES | {"models", "process", "data"},
}


def _rooms(names):
    return {name.split(".")[1] for name in names if name.startswith("shift_diffusion.")}


@pytest.mark.parametrize("room", MAY_ENTER)
def test_rooms_enter_only_the_rooms_below_them(room):
    for file in project_files(f"shift_diffusion/{room}"):
        entered = _rooms(imports_of(file)) - {room}
        assert entered <= MAY_ENTER[room], f"{file.relative_to(ROOT)} imports {sorted(entered - MAY_ENTER[room])}"


def test_the_library_never_imports_stages_or_flows():
    for file in project_files("shift_diffusion"):
        names = {name.split(".")[0] for name in imports_of(file)}
        assert not names & {"stages", "flows"}, file


def test_flows_run_stages_through_dvc_only():
    light = {"config", "tracking", "registry", "data", "files", "results", "plots", "pictures", "progress"}
    for file in project_files("flows"):
        names = imports_of(file)
        assert "stages" not in {name.split(".")[0] for name in names}, file
        assert _rooms(names) <= light, file


@pytest.mark.parametrize(
    ("package", "homes"),
    [
        ("mlflow", ("shift_diffusion.tracking", "shift_diffusion.registry", "shift_diffusion.serving", "flows.rerun")),
        ("prefect", ("flows",)),
        ("dvc", ("flows",)),
        ("diffusers", ()),
        ("scipy", ()),  # its matrix square root changes with the version (case 21); FID needs none
    ],
)
def test_each_engine_has_one_home(package, homes):
    for file in project_files("shift_diffusion", "stages", "flows"):
        if any(name.split(".")[0] == package for name in imports_of(file)):
            assert module_name(file).startswith(homes or ("-",)), f"{file.relative_to(ROOT)} imports {package}"


UNSAFE = re.compile(r"\bimport pickle\b|pickle\.loads?\(|\bdill\b|joblib\.load|\beval\(|\bexec\(|weights_only=False")


def test_nothing_that_is_loaded_can_run_code():
    for file in project_files("shift_diffusion", "stages", "flows"):
        text = file.read_text(encoding="utf-8")
        for line in text.splitlines():
            if ".eval(" in line or "regex-safe" in line:
                continue
            assert not UNSAFE.search(line), f"{file.relative_to(ROOT)}: {line.strip()}"
        for call in re.findall(r"torch\.load\([^)]*\)", text):
            assert "weights_only=True" in call, f"{file.relative_to(ROOT)}: {call}"


def test_stages_are_thin_doors():
    for file in project_files("stages"):
        assert len(file.read_text(encoding="utf-8").splitlines()) <= 60, f"{file.name} does work of its own"


def test_importing_the_light_modules_loads_no_heavy_package():
    """`--help` and the no-op run stay quick only while these modules import nothing heavy at the top."""
    import subprocess
    import sys

    code = (
        "import sys, shift_diffusion.config, shift_diffusion.tracking, shift_diffusion.cli; "
        "heavy = ('torch', 'mlflow', 'prefect', 'matplotlib', 'sklearn', 'transformers'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
