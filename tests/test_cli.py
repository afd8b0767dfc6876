"""The command line: fast where it can be, one clear line where something is wrong."""

import subprocess
import sys
import time

import numpy as np
import pytest
import yaml
from PIL import Image

from shift_diffusion import cli
from shift_diffusion.config import read_yaml
from tests.conftest import merge
from tests.mlflow_project import ROOT, database, project, store  # noqa: F401
from tests.registry.registry_builder import DEFAULTS, build_outs


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    build_outs(folder, seed=0)
    return folder / "models" / "stage-3"


def test_help_is_light():
    code = "import sys; from shift_diffusion import cli\ntry: cli.main(['--help'])\nexcept SystemExit: pass\n"
    code += "print([name for name in ('torch', 'mlflow', 'numpy', 'prefect', 'pydantic') if name in sys.modules])"
    start = time.process_time()
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert time.process_time() - start < 1
    assert done.stdout.splitlines()[-1] == "[]"
    for command in ("check", "sample", "diagnose", "report", "results", "registry"):
        assert command in done.stdout


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["sample", "-n", "many"], ["registry"], ["registry", "promote"]]
)
def test_wrong_use_is_exit_code_2(arguments):
    with pytest.raises(SystemExit) as ending:
        cli.main(arguments)
    assert ending.value.code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sample", "-n", "0", "--steps", "0"], "--count: 0 is not allowed; must be at least 1"),
        (["sample", "--guidance", "-1"], "--guidance: -1.0 is not allowed"),
        (["sample", "--seed", "-1"], "--seed: -1 is not allowed"),
        (["sample", "--model", "nowhere"], "'nowhere' is not a folder"),
        (["sample", "--model", "models:/a/b"], "allowed: models:/NAME@ALIAS"),
        (["check", "nowhere.yaml"], "nowhere.yaml"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(project, capsys, arguments, message):  # noqa: F811
    assert cli.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_check_is_the_dry_run(project, capsys):  # noqa: F811
    """Case 40: the data and every section are looked at before any work; a pipeline that can start is described."""
    smoke = merge(read_yaml(ROOT / "params.yaml"), read_yaml(ROOT / "tests" / "smoke.yaml"))
    folder = {"data": {"source": "folder", "path": "pictures"}}
    for content, message in (
        (merge(smoke, {"evaluate": {"num_steps": 0}, "optim": {"lr": 1.0}}), "2 problems found, nothing was started"),
        (merge(smoke, folder), "data.path: 'pictures' is not a folder"),
        (merge(smoke, {"data": {"source": "torchvision:NoSuchSet", "path": "."}}), "no data set 'NoSuchSet'"),
    ):
        (project / "params.yaml").write_text(yaml.safe_dump(content))
        assert cli.main(["check"]) == 2
        assert message in capsys.readouterr().err
    (project / "pictures").mkdir()
    (project / "params.yaml").write_text(yaml.safe_dump(merge(smoke, folder)))
    assert cli.main(["check"]) == 2
    assert "'pictures' holds no pictures" in capsys.readouterr().err
    (project / "pictures" / "a.PNG").write_bytes(b"prepare reads it, the check looks at names")
    assert cli.main(["check"]) == 0
    assert "stage-3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sampler", "ddpm"], "'ddpm' does not fit a model trained on schedule flow; allowed: ddim, dpmpp_2m, euler"),
        (["--variant", "weight_int8"], "weight_int8"),
    ],
)
def test_what_a_model_does_not_allow_is_one_line_and_exit_code_2(project, model, capsys, arguments, message):  # noqa: F811
    """Case 20, at the command line."""
    assert cli.main(["sample", "-n", "1", "--model", str(model), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_samples_know_how_they_were_made(project, model, capsys):  # noqa: F811
    arguments = ["sample", "-n", "3", "--seed", "5", "--steps", "2", "--sampler", "euler", "--model", str(model)]
    assert cli.main([*arguments, "-o", "out"]) == 0
    assert capsys.readouterr().out.splitlines()[-3:] == [f"out/00000{seed}.png" for seed in (5, 6, 7)]
    found = Image.open("out/000006.png").text
    assert (found["seed"], found["sampler"], found["num_steps"], found["model"]) == ("6", "euler", "2", str(model))
    assert cli.main([*arguments, "-o", "again", "--batch-size", "1"]) == 0
    first, again = (np.asarray(Image.open(f"{folder}/000007.png"), np.int16) for folder in ("out", "again"))
    assert np.abs(first - again).max() <= 1  # another batch adds up in another order: at most the last bit
    assert cli.main([*arguments, "-o", "sheet", "--grid"]) == 0
    assert Image.open("sheet/grid-5-7.png").text["seeds"] == "5..7"


def test_registry_from_empty_to_rolled_back(project, store, model, capsys):  # noqa: F811
    from shift_diffusion.registry.registering import register_model

    assert cli.main(["registry", "list"]) == 0
    assert "no versions yet" in capsys.readouterr().out
    assert cli.main(["registry", "rollback"]) == 1
    assert "no previous champion" in capsys.readouterr().err
    build_outs(project, seed=1)
    for folder, fid in ((model, 100.0), (project / "models" / "stage-3", 90.0)):
        run_id = store.client.create_run(store.experiment_id).info.run_id
        options = {"name": "shift-diffusion", "metric": "fid", "conditions": {}, "defaults": DEFAULTS}
        register_model(store, run_id, folder, None, metrics={"fid": fid}, **options)
    assert cli.main(["registry", "rollback"]) == 0
    assert "version 1 is now champion: rolled back from version 2" in capsys.readouterr().out
    assert cli.main(["registry", "promote", "2", "--reason", "sharper"]) == 0
    capsys.readouterr()
    assert cli.main(["registry", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:4] == ["2", "champion", "fid", "90"]
    assert cli.main(["registry", "list", "--decisions"]) == 0
    assert capsys.readouterr().out.count("promoted") == 4
    assert cli.main(["registry", "promote", "9"]) == 1
    assert cli.main(["sample", "-n", "1", "--steps", "2", "-o", "out"]) == 0
    assert Image.open("out/000000.png").text["model"].startswith("shift-diffusion version 2 (")


def test_no_password_in_the_message_of_a_dead_server(project, monkeypatch, capsys):  # noqa: F811
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://someone:hunter2@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert cli.main(["registry", "list"]) == 1
    error = capsys.readouterr().err
    assert "127.0.0.1:9" in error
    assert "hunter2" not in error
