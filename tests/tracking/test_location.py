"""One store, whatever the working directory; no password in what is shown."""

from pathlib import Path

import pytest

from shift_diffusion.tracking.location import code_root, project_root, redact, tracking_uri


@pytest.fixture
def folders(tmp_path, monkeypatch) -> Path:
    for name in ("MLFLOW_TRACKING_URI", "SHIFT_DIFFUSION_ROOT", "DVC_ROOT"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / "sub" / "deeper").mkdir(parents=True)
    copy = tmp_path / ".dvc" / "tmp" / "exps" / "tmpabc"
    copy.mkdir(parents=True)
    (copy / "dvc.yaml").touch()
    return tmp_path


@pytest.mark.parametrize("where", [".", "sub/deeper", ".dvc/tmp/exps/tmpabc"])
def test_every_folder_of_the_project_has_the_same_store(folders, monkeypatch, where):
    monkeypatch.chdir(folders / where)
    assert project_root() == folders
    assert tracking_uri() == f"sqlite:///{folders}/mlflow.db"


def test_code_of_a_temporary_copy_is_its_own(folders):
    copy = folders / ".dvc" / "tmp" / "exps" / "tmpabc"
    assert code_root(copy) == copy
    assert project_root(copy) == folders


def test_environment_names_the_root_where_no_dvc_yaml_is(tmp_path_factory, monkeypatch):
    elsewhere, root = tmp_path_factory.mktemp("elsewhere"), tmp_path_factory.mktemp("root")
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("DVC_ROOT", str(root))
    assert project_root() == root
    monkeypatch.setenv("SHIFT_DIFFUSION_ROOT", str(elsewhere))
    assert project_root() == elsewhere


def test_tracking_uri_of_the_user_wins(folders, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://localhost:5000")
    assert tracking_uri(folders) == "http://localhost:5000"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://user:hunter2@db.example:5432/mlflow",
        "http://user:hunter2@127.0.0.1:5000/api failed",
        "postgresql+psycopg2://user:hun/hunter2@db/mlflow",
        "connection to 'https://hunter2@host/x' refused; password=hunter2",
        "s3 secret: hunter2",
    ],
)
def test_passwords_are_never_shown(text):
    assert "hunter2" not in redact(text)


def test_harmless_text_is_shown_as_it_is():
    text = "sqlite:////srv/a project/mlflow.db and http://localhost:5000 and a@b.example"
    assert redact(text) == text


def test_password_of_the_environment_is_never_shown(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "correct horse")
    assert "horse" not in redact("401 for correct horse")


def test_the_projects_own_parameters_hold_nothing_that_looks_like_a_secret():
    text = (Path(__file__).resolve().parent.parent.parent / "params.yaml").read_text(encoding="utf-8")
    assert redact(text) == text, "a record with changed parameters could not be made again"
