"""dvc.yaml read as a DAG, the process group of a stage, and the locks of the dead. No Prefect server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from flows.dag import read_dag, select
from flows.dvc_stage import Command, StageFailed, StageStopped, StageTimedOut, run_dvc
from flows.project import Busy, hold_project, project_root, release_dead_locks
from shift_diffusion.config import ConfigError
from tests.flows.conftest import ROOT, wait_until


def test_dag_of_the_real_pipeline():
    dag = read_dag(ROOT)
    assert set(dag) >= {"prepare", "reference", "stage-1", "stage-2", "stage-3", "evaluate", "quantize", "register"}
    assert dag["stage-2"].after == ("prepare", "stage-1")
    assert list(dag).index("stage-3") < list(dag).index("evaluate") < list(dag).index("register")
    assert "quantize" not in dag["evaluate"].after, "evaluate and quantize are independent"


def test_dag_and_selection(toy):
    dag = read_dag(toy.root)
    assert dag["register"].after == ("evaluate", "quantize")
    assert (dag["stage-2"].time_limit, dag["stage-2"].retries) == (60, 1)
    assert list(select(dag, ["stage-1"])) == ["prepare", "stage-1"]
    with pytest.raises(ConfigError, match="did you mean 'stage-1'"):
        select(dag, ["stage1"])


@pytest.mark.parametrize("meta", ["{time_limit_s: soon}", "{time_limit_s: -1}", "{retries: often}"])
def test_bad_limits_are_refused(toy, meta):
    text = (toy.root / "dvc.yaml").read_text().replace("{retries: 1, time_limit_s: 60}", meta)
    (toy.root / "dvc.yaml").write_text(text)
    with pytest.raises(ConfigError, match="stage-2.meta"):
        read_dag(toy.root)


def test_outside_a_project(tmp_path):
    with pytest.raises(FileNotFoundError, match="not inside a DVC project"):
        project_root(tmp_path)


def test_output_is_streamed_and_the_stages_own_exit_code_kept(toy):
    toy.control(prepare={"exit": 3})
    lines = []
    with pytest.raises(StageFailed, match="the reason it failed") as failure:
        run_dvc(Command(["repro", "--single-item", "prepare"], toy.root, lines.append))
    assert failure.value.exit_code == 3
    assert not failure.value.crashed
    assert "prepare: the reason it failed" in lines


def test_kill_of_a_stage_is_a_crash(toy):
    toy.control(prepare={"kill": True})
    with pytest.raises(StageFailed) as failure:
        run_dvc(Command(["repro", "--single-item", "prepare"], toy.root, print))
    assert failure.value.crashed


@pytest.mark.parametrize("how", ["stopped", "timed out"])
def test_the_whole_group_ends_even_deaf_and_detached_processes(toy, how):
    toy.control(prepare={"sleep": 100, "deaf": True})
    stop = threading.Event()
    command = Command(["repro", "--single-item", "prepare"], toy.root, print, stop=stop, grace=1)
    if how == "timed out":
        command.time_limit = 6
    else:
        threading.Thread(target=lambda: (toy.wait_for("prepare"), time.sleep(0.5), stop.set())).start()
    with pytest.raises(StageTimedOut if how == "timed out" else StageStopped):
        run_dvc(command)
    assert toy.processes() == []
    release_dead_locks(toy.root)
    assert json.loads((toy.root / ".dvc/tmp/rwlock").read_text() or "{}").get("write", {}) == {}


def test_a_stage_asked_to_stop_keeps_dvcs_locks_in_order(toy):
    toy.control(prepare={"sleep": 100})
    stop = threading.Event()
    threading.Thread(target=lambda: (toy.wait_for("prepare"), stop.set())).start()
    with pytest.raises(StageStopped):
        run_dvc(Command(["repro", "--single-item", "prepare"], toy.root, print, stop=stop))
    assert json.loads((toy.root / ".dvc/tmp/rwlock").read_text()) == {}, "DVC itself released them"


def test_nothing_outlives_a_killed_caller(toy):
    toy.control(prepare={"sleep": 100, "deaf": True})
    script = (
        "from flows.dvc_stage import *; "
        "run_dvc(Command(['repro', '--single-item', 'prepare'], Path('.'), print, grace=1))"
    )
    caller = subprocess.Popen([sys.executable, "-c", script], cwd=toy.root, env=toy.env)
    toy.wait_for("prepare")
    caller.kill()
    caller.wait()
    wait_until(lambda: not toy.processes(), timeout=30, what="everything gone")


def test_a_persons_repro_blocks_the_flow_with_a_clear_refusal(toy):
    """Case 30, second half: not hanging, not completed, and naming who works there."""
    toy.control(prepare={"sleep": 6})
    person = subprocess.Popen([sys.executable, "-m", "dvc", "repro", "prepare"], cwd=toy.root, env=toy.env)
    toy.wait_for("prepare")
    start = time.monotonic()
    with pytest.raises(StageFailed, match=rf"another DVC command works in this project:[\s\S]*{person.pid}"):
        run_dvc(Command(["repro", "--single-item", "prepare"], toy.root, print))
    assert time.monotonic() - start < 12
    assert person.wait() == 0


@pytest.mark.parametrize("left", ["dead process", "number reused by another program", "cut short"])
def test_locks_of_a_killed_repro_are_freed(toy, left):
    """Case 30, first half: the next run goes on by itself."""
    path = toy.root / ".dvc/tmp/rwlock"
    path.parent.mkdir(exist_ok=True)
    other = subprocess.Popen(["sleep", "60"])
    pid = other.pid if "reused" in left else 2**22 - 3
    held = {"write": {str(toy.root / "data/prepared.txt"): {"pid": pid, "cmd": "dvc repro"}}, "read": {}}
    path.write_text('{"write": {' if left == "cut short" else json.dumps(held))
    try:
        assert release_dead_locks(toy.root)
        run_dvc(Command(["repro", "--single-item", "prepare"], toy.root, print))
    finally:
        other.kill()
        other.wait()
    assert (toy.root / "data/prepared.txt").is_file()


def test_after_kill_9_of_a_persons_repro_the_next_one_goes_on_by_itself(toy):
    """Case 30, first half, with a real kill: of everything at once, as the kernel or a power cut does it."""
    toy.control(prepare={"sleep": 100})
    command = [sys.executable, "-m", "dvc", "repro", "prepare"]
    person = subprocess.Popen(command, cwd=toy.root, env=toy.env, start_new_session=True)
    toy.wait_for("prepare")
    wait_until(lambda: (toy.root / ".checkpoints/prepare").is_file())
    os.killpg(person.pid, signal.SIGKILL)
    person.wait()
    assert str(person.pid) in (toy.root / ".dvc/tmp/rwlock").read_text(), "it has left its lock"
    toy.control()
    release_dead_locks(toy.root)
    run_dvc(Command(["repro", "--single-item", "prepare"], toy.root, print))
    assert toy.times("start")[-1]["step"] > 0, "from its checkpoint"


def test_a_living_dvc_keeps_its_locks(toy):
    toy.control(prepare={"sleep": 3})
    person = subprocess.Popen([sys.executable, "-m", "dvc", "repro", "prepare"], cwd=toy.root, env=toy.env)
    toy.wait_for("prepare")
    assert release_dead_locks(toy.root) == []
    assert person.wait() == 0


def test_one_flow_per_project(toy):
    with hold_project(toy.root):
        with pytest.raises(Busy, match=f"process {os.getpid()}"):
            with hold_project(toy.root):
                pass
    with hold_project(toy.root, wait_seconds=0):
        pass


def test_the_lock_waits_for_the_last_process_of_a_killed_flow(toy):
    """The leash of a killed flow holds the lock until its stage is gone: the next flow waits, then goes on."""
    script = "import os, time; from flows.project import *; from pathlib import Path\n"
    script += "with hold_project(Path('.')) as lock:\n"
    script += "    if os.fork() == 0:\n        time.sleep(4); os._exit(0)\n    os.kill(os.getpid(), 9)"
    subprocess.run([sys.executable, "-c", script], cwd=toy.root, env=toy.env, check=False)
    start = time.monotonic()
    with hold_project(toy.root):
        assert 1 < time.monotonic() - start < 15


def test_psutil_sees_this_process():
    """The life checks rest on start times: equal for two looks at one process."""
    assert psutil.Process().create_time() == psutil.Process(os.getpid()).create_time()
