"""What it takes to make a run again."""

import subprocess

import pytest

from shift_diffusion.tracking import record
from tests.mlflow_project import DVC_YAML


def git(folder, *arguments):
    return subprocess.run(["git", *arguments], cwd=folder, check=True, capture_output=True, text=True).stdout


@pytest.fixture
def repository(tmp_path):
    git(tmp_path, "init", "-q")
    git(tmp_path, "config", "user.email", "someone@example.com")
    git(tmp_path, "config", "user.name", "someone")
    (tmp_path / "code.py").write_text("a = 1\n")
    (tmp_path / "gone.py").write_text("b = 1\n")
    (tmp_path / ".gitignore").write_text("data/\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


def test_a_clean_tree_has_a_commit_and_no_patch(repository):
    state = record.git_state(repository)
    assert state["commit"] == git(repository, "rev-parse", "HEAD").strip()
    assert not state["dirty"]
    assert state["patch"] == ""


def test_the_patch_gives_the_working_tree_back(repository, tmp_path_factory):
    (repository / "code.py").write_text("a = 2\n")
    (repository / "gone.py").unlink()
    (repository / "new").mkdir()
    (repository / "new" / "picture.bin").write_bytes(bytes(range(256)))
    (repository / "data").mkdir()
    (repository / "data" / "big").write_text("ignored")
    (repository / ".env").write_text("PASSWORD=hunter2")
    (repository / "new" / "server.key").write_text("hunter2")
    before = git(repository, "status", "--porcelain")
    state = record.git_state(repository)
    assert git(repository, "status", "--porcelain") == before, "the user's index must not change"
    assert "hunter2" not in state["patch"]
    copy = tmp_path_factory.mktemp("copy") / "tree"
    git(repository, "worktree", "add", "--detach", str(copy), state["commit"])
    patch = state["patch"].encode("utf-8", "surrogateescape")
    subprocess.run(["git", "apply", "--binary", "-"], cwd=copy, input=patch, check=True)
    assert (copy / "code.py").read_text() == "a = 2\n"
    assert not (copy / "gone.py").exists()
    assert (copy / "new" / "picture.bin").read_bytes() == bytes(range(256))
    assert not (copy / "data").exists()


def test_large_untracked_files_are_left_out_and_it_is_said(repository, monkeypatch):
    monkeypatch.setattr(record, "PATCH_LIMIT", 2000)
    (repository / "code.py").write_text("a = 2\n")
    (repository / "pictures.txt").write_text("".join(f"{number}\n" for number in range(1000)))
    state = record.git_state(repository)
    assert not state["complete"]
    assert "code.py" in state["patch"]
    assert "pictures.txt" not in state["patch"]


def test_changes_are_kept_where_git_cannot_add_everything(repository):
    (repository / "code.py").write_text("a = 2\n")
    (repository / "nested").mkdir()
    git(repository / "nested", "init", "-q")  # a repository without a commit: `git add -A` refuses all
    state = record.git_state(repository)
    assert (state["dirty"], state["complete"]) == (True, False)
    assert "a = 2" in state["patch"]


def test_what_tracking_itself_writes_is_no_change(repository):
    for name in ("mlflow.db", "mlflow.db-journal", ".mlflow/run/events.jsonl", "mlartifacts/1/grid.png"):
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text("new")
    assert not record.git_state(repository)["dirty"]


def test_without_git_nothing_breaks(tmp_path, monkeypatch):
    assert record.git_state(tmp_path)["commit"] is None
    monkeypatch.setenv("PATH", "")
    assert record.git_state(tmp_path)["commit"] is None


def test_config_hash_looks_at_meaning(tmp_path):
    one = record.config_hash("seed: 0\nlr: 1e-4 # rate\n")
    assert one == record.config_hash("lr: 0.0001\nseed: 0\n")
    assert one != record.config_hash("lr: 0.0002\nseed: 0\n")


def test_stage_hash_changes_with_code_inputs_and_parameters(tmp_path):
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "params.yaml").write_text("seed: 0\nother: 1\n")
    (tmp_path / "make.py").write_text("1")
    first = record.stage_hash(tmp_path, "make")
    (tmp_path / "params.yaml").write_text("seed: 0\nother: 2\n")
    assert record.stage_hash(tmp_path, "make") == first
    (tmp_path / "params.yaml").write_text("seed: 1\nother: 2\n")
    second = record.stage_hash(tmp_path, "make")
    (tmp_path / "make.py").write_text("2")
    assert len({first, second, record.stage_hash(tmp_path, "make")}) == 3
    assert record.stage_hash(tmp_path, "unknown") is None


def test_uncached_outs_are_those_that_dvc_lock_knows(tmp_path):
    (tmp_path / "dvc.yaml").write_text(DVC_YAML)
    (tmp_path / "report.json").write_text("{}")
    assert record.uncached_outs(tmp_path) == []
    md5 = record.path_md5(tmp_path / "report.json")
    lock = f"stages:\n  make:\n    outs:\n    - {{path: report.json, md5: {md5}}}\n"
    (tmp_path / "dvc.lock").write_text(lock)
    assert record.uncached_outs(tmp_path) == ["report.json"]
    (tmp_path / "report.json").write_text("{ }")
    assert record.uncached_outs(tmp_path) == []


def test_hashes_are_those_of_dvc(tmp_path):
    from dvc_data.hashfile.hash import file_md5
    from dvc_data.hashfile.hash_info import HashInfo
    from dvc_data.hashfile.meta import Meta
    from dvc_data.hashfile.tree import Tree
    from dvc_objects.fs.local import LocalFileSystem

    (tmp_path / "b").mkdir()
    names = ["b/é.txt", "b.txt", "a.bin"]
    for name in names:
        (tmp_path / name).write_text(name)
    tree = Tree()
    for name in names:
        md5 = file_md5(str(tmp_path / name), LocalFileSystem())
        assert record.path_md5(tmp_path / name) == md5
        tree.add(tuple(name.split("/")), Meta(), HashInfo("md5", md5))
    tree.digest()
    assert record.path_md5(tmp_path) == tree.hash_info.value


def test_packages_are_listed():
    assert record.packages()["torch"]
    assert set(record.machine()) == {"python", "platform", "cpu_count"}
