"""Many processes train the same network as one: DDP, FSDP, and two hosts."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from shift_diffusion.training.launch import launch_command

ROOT = Path(__file__).resolve().parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def command(data, out: Path, overlay: dict, processes: int = 1) -> list[str]:
    out.mkdir(parents=True, exist_ok=True)
    worker = ["-m", "tests.training.worker", str(data.folder), str(out), json.dumps(overlay)]
    if processes == 1:
        return [sys.executable, *worker]
    return [*TORCHRUN, "--standalone", f"--nproc_per_node={processes}", *worker]


def run(arguments: list[str]) -> str:
    done = subprocess.run(arguments, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def cut(batch_size: int, **extra) -> dict:
    return {"optim": {"name": "adamw"}, "train": {"stage-1": {"batch_size": batch_size}}, **extra}


def largest_difference(a: Path, b: Path) -> float:
    first, second = load_file(a), load_file(b)
    assert first.keys() == second.keys()
    return max((first[name] - second[name]).abs().max().item() for name in first)


@pytest.fixture(scope="module")
def one(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("one")
    run(command(data, out, cut(8)))
    return out


def assert_same(one: Path, two: Path) -> None:
    for kind in ("averaged", "raw"):
        assert largest_difference(one / f"{kind}-0.safetensors", two / f"{kind}-0.safetensors") < 1e-5
        assert largest_difference(two / f"{kind}-0.safetensors", two / f"{kind}-1.safetensors") == 0
    a, b = (json.loads((folder / "metrics.json").read_text()) for folder in (one, two))
    assert a.keys() == b.keys()
    assert all(a[name] == pytest.approx(b[name], rel=1e-4, abs=1e-6) for name in a)


def test_two_processes_equal_one(data, one, tmp_path):
    """20 steps of 8 images, the last incomplete group included; the validation is shared, too."""
    run(command(data, tmp_path, cut(4), processes=2))
    assert_same(one, tmp_path)


@pytest.mark.slow
def test_sharded_processes_equal_one_and_resume(data, one, tmp_path):
    overlay = cut(4, runtime={"sharding": "fsdp"})
    run(command(data, tmp_path, overlay, processes=2))
    assert_same(one, tmp_path)
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert [path.name for path in folder.iterdir()] == ["step-00000020"]
    assert "resumed" in run(command(data, tmp_path, overlay, processes=2))
    assert_same(one, tmp_path)


@pytest.mark.slow
def test_a_signal_to_the_launcher_stops_all_with_one_checkpoint(data, one, tmp_path):
    overlay = cut(4)
    process = subprocess.Popen(command(data, tmp_path, overlay, processes=2), cwd=ROOT, env=environment())
    wait_for(tmp_path / "checkpoints", "step-00000005")
    process.send_signal(signal.SIGTERM)
    start = time.monotonic()
    process.wait(30)
    assert time.monotonic() - start < 10
    assert process.returncode != 0
    run(command(data, tmp_path, overlay, processes=2))
    assert_same(one, tmp_path)


def wait_for(folder: Path, name: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not list(folder.glob(f"*/{name}")):
        assert time.monotonic() < end, f"no {name} in {folder}"
        time.sleep(0.01)


def _can_make_hosts() -> bool:
    if shutil.which("ip") is None or shutil.which("unshare") is None:
        return False
    return subprocess.run(["unshare", "-rn", "ip", "netns"], capture_output=True, check=False).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not _can_make_hosts(), reason="needs network namespaces")
def test_two_hosts_equal_one(data, one, tmp_path):
    """Two network namespaces joined by a virtual cable, one process each, meeting over TCP."""
    out = tmp_path / "out"
    worker = command(data, out, cut(4))[1:]
    done = subprocess.run(
        ["bash", str(ROOT / "tests" / "training" / "two_hosts.sh"), sys.executable, *worker],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 77:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stdout + done.stderr
    assert_same(one, out)


# the stage command's own launcher


@pytest.mark.parametrize("environ", [{}, {"OMP_NUM_THREADS": "4"}])
def test_one_process_needs_no_launcher(short, environ):
    assert launch_command(short().runtime, "stages.train", ["--stage", "1"], environ) == []


def test_many_processes_start_through_accelerate_once(short):
    runtime = short({"runtime": {"num_processes": 2, "threads": 3}}).runtime
    line = launch_command(runtime, "stages.train", ["--stage", "2"], {})
    assert line[:3] == [sys.executable, "-m", "accelerate.commands.launch"]
    assert " ".join(line).endswith("--module stages.train --stage 2")
    for option in ("--num_processes 2", "--num_cpu_threads_per_process 3"):
        assert option in " ".join(line)
    assert launch_command(runtime, "stages.train", ["--stage", "2"], {"WORLD_SIZE": "2"}) == []


@pytest.mark.slow
def test_accelerate_launch_starts_the_processes(short, data, one, tmp_path):
    tmp_path.joinpath("out").mkdir()
    runtime = short({"runtime": {"num_processes": 2}}).runtime
    arguments = [str(data.folder), str(tmp_path / "out"), json.dumps(cut(4))]
    run(launch_command(runtime, "tests.training.worker", arguments, {}))
    assert_same(one, tmp_path / "out")
