"""Checkpoints: complete or not there, verified, never another run's (cases 12, 14 to 17)."""

import errno
import json
import resource
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from shift_diffusion.config import ConfigError
from shift_diffusion.training import checkpoint as module
from shift_diffusion.training.checkpoint import CheckpointError, CheckpointFolder, check_space, free_bytes

STATE = {"loss": 0.1 + 0.2, "rows": [{"step": 1}]}


def tensors(value: float = 1.0) -> dict[str, torch.Tensor]:
    return {"network.weight": torch.full((4, 3), value), "optimizer.weight.exp_avg": torch.zeros(4, 3)}


@pytest.fixture
def folder(tmp_path) -> CheckpointFolder:
    return CheckpointFolder(tmp_path / "stage-1-abc", "abc", keep=2)


def names(folder: CheckpointFolder) -> list[str]:
    return sorted(path.name for path in folder.folder.iterdir())


def test_round_trip_is_exact(folder):
    folder.save(7, tensors(0.1), STATE, regular=True)
    loaded = folder.newest()
    assert (loaded.step, loaded.regular, loaded.state) == (7, True, STATE)
    assert all(torch.equal(loaded.tensors[name], value) for name, value in tensors(0.1).items())


def test_no_checkpoint_is_no_error(folder):
    assert folder.newest() is None


def test_channels_last_weights_are_stored_whole(folder):
    weight = torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last)
    folder.save(1, {"w": weight}, {}, regular=True)
    assert torch.equal(folder.newest().tensors["w"], weight)


@pytest.mark.parametrize("steps", [(998, 999, 1000), (9900, 9999, 10000), (99_999_999, 100_000_000, 1_000_000_000)])
def test_rotation_counts_by_number_not_by_text(folder, steps):
    for step in steps:
        folder.save(step, tensors(step), {}, regular=True)
    assert folder.newest().step == steps[-1]
    assert len(names(folder)) == 2


def test_an_interrupted_checkpoint_displaces_no_regular_one(folder):
    for step in (10, 20):
        folder.save(step, tensors(), {}, regular=True)
    for step in (21, 22, 23):
        folder.save(step, tensors(), {}, regular=False)
    assert names(folder) == ["step-00000010", "step-00000020", "step-00000023-interrupted"]
    assert folder.newest().step == 23
    assert folder.newest(regular_only=True).step == 20
    folder.save(30, tensors(), {}, regular=True)
    assert names(folder) == ["step-00000020", "step-00000030"]


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_none_or_all_is_refused(tmp_path, tiny_params, keep):
    with pytest.raises(ValueError, match="at least 1"):
        CheckpointFolder(tmp_path, "abc", keep)
    with pytest.raises(ConfigError, match="keep_checkpoints"):
        tiny_params({"train": {"cadence": {"keep_checkpoints": keep}}})


def test_keep_one(tmp_path):
    folder = CheckpointFolder(tmp_path / "x", "abc", keep=1)
    for step in range(5):
        folder.save(step, tensors(), {}, regular=True)
    assert names(folder) == ["step-00000004"]


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [_truncate, _flip_a_bit, Path.unlink, lambda path: path.write_bytes(b""), lambda path: path.write_text("[]")],
)
@pytest.mark.parametrize("file", [module.TENSORS, module.STATE])
def test_a_broken_newest_one_is_set_aside_and_the_one_before_used(folder, caplog, file, damage):
    if damage is _flip_a_bit and file == module.STATE:
        pytest.skip("a bit of the JSON is no format error; its numbers carry no checksum")
    folder.save(10, tensors(1), {}, regular=True)
    folder.save(20, tensors(2), {}, regular=True)
    damage(folder.folder / "step-00000020" / file)
    loaded = folder.newest()
    assert loaded.step == 10
    assert torch.equal(loaded.tensors["network.weight"], tensors(1)["network.weight"])
    assert "broken-step-00000020" in names(folder)
    assert "step-00000020 can't be read" in caplog.text


def test_leftovers_of_a_killed_save_are_removed(folder):
    folder.save(10, tensors(), {}, regular=True)
    half = folder.folder / ".writing-step-00000020"
    half.mkdir()
    (half / module.TENSORS).write_bytes(b"half")
    again = CheckpointFolder(folder.folder, "abc", keep=2)
    assert again.newest().step == 10
    assert names(again) == ["step-00000010"]


_KILLED_WHILE_SAVING = """
import os, signal, sys, time
from pathlib import Path
import torch
from shift_diffusion.training.checkpoint import CheckpointFolder

torch.set_num_threads(1)
place, steps, halves = Path(sys.argv[1]), [0], 0
for attempt in range(20):
    child = os.fork()
    if child == 0:
        folder = CheckpointFolder(place, "abc", keep=2)
        for step in range(steps[-1] + 1, 10**6):
            folder.save(step, {"w": torch.full((200_000,), float(step))}, {"step": step}, regular=True)
    while not list(place.glob(".writing-*")) or not list(place.glob("step-*")):
        time.sleep(0.0002)
    time.sleep(attempt * 0.0005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    halves += len(list(place.glob(".writing-*")))
    newest = CheckpointFolder(place, "abc", keep=2).newest()
    assert newest.state["step"] == newest.step >= steps[-1]
    assert (newest.tensors["w"] == newest.step).all()
    # what the killed one had no time to remove goes with the next save
    steps.append(newest.step + 1)
    more = {"w": newest.tensors["w"] + 1}
    CheckpointFolder(place, "abc", keep=2).save(steps[-1], more, {"step": steps[-1]}, regular=True)
    names = sorted(path.name for path in place.iterdir())
    assert names == [f"step-{step:08d}" for step in (newest.step, steps[-1])], names
print(halves)
"""


def test_twenty_kills_while_saving(tmp_path):
    """Case 12: always a whole checkpoint, never an older one than before, nothing piles up."""
    done = subprocess.run(
        [sys.executable, "-c", _KILLED_WHILE_SAVING, tmp_path / "x"],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0, "no kill has met a half-written checkpoint"


def test_a_run_whose_only_checkpoint_is_broken_says_that_it_starts_anew(folder, caplog):
    """Case 12: never a silent start from zero."""
    _truncate(folder.save(10, tensors(), {}, regular=True) / module.TENSORS)
    assert folder.newest() is None
    assert "step-00000010 can't be read" in caplog.text
    assert "this run starts at step 0" in caplog.text
    assert names(folder) == ["broken-step-00000010"]


def test_what_was_just_written_stays_whatever_else_lies_there(tmp_path):
    """Case 15: a higher number, left by another run."""
    CheckpointFolder(tmp_path / "x", "old", keep=1).save(5000, tensors(), {}, regular=True)
    folder = CheckpointFolder(tmp_path / "x", "abc", keep=1)
    assert folder.save(10, tensors(), {}, regular=True).is_dir()
    assert names(folder) == ["step-00000010", "step-00005000"]


def test_numbers_of_numpy_are_stored_as_plain_ones_or_refused(folder):
    """Case 14: a best score that an evaluation left in the state."""
    folder.save(10, tensors(), {"best_fid": np.float64(12.5)}, regular=True)
    (stored,) = folder.newest().state.values()
    assert (type(stored), stored) == (float, 12.5)
    with pytest.raises(TypeError, match="float32"):
        folder.save(20, tensors(), {"best_fid": np.float32(12.5)}, regular=True)
    assert names(folder) == ["step-00000010"]


def test_another_runs_checkpoint_is_refused(folder):
    folder.save(5000, tensors(), {}, regular=True)
    with pytest.raises(CheckpointError, match="belongs to run abc, not to def"):
        CheckpointFolder(folder.folder, "def", keep=2).newest()


def test_another_format_is_refused(folder):
    path = folder.save(5, tensors(), {}, regular=True) / module.STATE
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format_version": 99}))
    with pytest.raises(CheckpointError, match="format 99 is unknown"):
        folder.newest()


def test_a_pickle_is_not_executed(folder, tmp_path, caplog):
    """Case 14: code hidden in a checkpoint doesn't run."""
    trap = tmp_path / "ran"

    class Trap:
        def __reduce__(self):
            return (Path.touch, (trap,))

    folder.save(10, tensors(), {}, regular=True)
    folder.save(20, tensors(), {}, regular=True)
    torch.save(Trap(), folder.folder / "step-00000020" / module.TENSORS)
    assert folder.newest().step == 10
    assert not trap.exists()


def test_numbers_that_are_not_json_are_refused_before_the_old_one_goes(folder):
    folder.save(10, tensors(), {}, regular=True)
    with pytest.raises(ValueError):
        folder.save(20, tensors(), {"loss": float("nan")}, regular=True)
    assert folder.newest().step == 10


def test_a_full_disk_leaves_the_old_one_and_no_partial_file(folder):
    """Case 17, through the limit on the size of a file, which every process may set for itself."""
    folder.save(10, tensors(), {}, regular=True)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(CheckpointError) as caught:
            folder.save(20, {"network.weight": torch.randn(100_000)}, {}, regular=True)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "step-00000020" in str(caught.value)
    assert "400,000 bytes" in str(caught.value)
    assert names(folder) == ["step-00000010"]
    assert folder.newest().step == 10


def test_a_read_only_place_is_named(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(CheckpointError, match="can't write the checkpoint"):
        CheckpointFolder(tmp_path / "file" / "x", "abc", keep=1).save(1, tensors(), {}, regular=True)


_ON_TMPFS = """
import sys, torch
from pathlib import Path
from shift_diffusion.training.checkpoint import CheckpointError, CheckpointFolder
folder = CheckpointFolder(Path(sys.argv[1]) / "run", "abc", keep=2)
folder.save(10, {"w": torch.zeros(500_000)}, {}, regular=True)
try:
    folder.save(20, {"w": torch.zeros(500_000)}, {}, regular=True)
except CheckpointError as error:
    print(error)
    print([path.name for path in folder.folder.iterdir()], folder.newest().step)
"""


def _can_mount() -> bool:
    return (
        shutil.which("unshare") is not None and not subprocess.run(["unshare", "-rm", "true"], check=False).returncode
    )


@pytest.mark.skipif(not _can_mount(), reason="needs a mount namespace")
def test_a_full_file_system(tmp_path):
    """Case 17 for real: 3 MB of tmpfs, 2 MB a checkpoint."""
    python = shlex.quote(sys.executable)
    script = f"mount -t tmpfs -o size=3M none {tmp_path} && exec {python} -c '{_ON_TMPFS}' {tmp_path}"
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    message, left = done.stdout.strip().splitlines()
    assert "2,000,000 bytes" in message
    assert "step-00000020" in message
    assert left == "['step-00000010'] 10"


def test_room_is_checked_before_the_work(tmp_path):
    check_space(tmp_path / "not" / "there" / "yet", 1)
    with pytest.raises(CheckpointError, match="make room first"):
        check_space(tmp_path, free_bytes(tmp_path) * 2)


def test_an_error_of_the_disk_is_reported_as_such(folder, monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "fsync", fail)
    with pytest.raises(CheckpointError, match="No space left on device"):
        folder.save(1, tensors(), {}, regular=True)
    assert names(folder) == []


def test_a_finished_run_keeps_its_end(folder):
    for step in (10, 20):
        folder.save(step, tensors(), {}, regular=True)
    folder.keep_only_newest()
    assert names(folder) == ["step-00000020"]
