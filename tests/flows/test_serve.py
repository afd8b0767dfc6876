"""The schedule: due dates around clock changes, missed ones, one run at a time; with `serve` and with a worker."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import psutil
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.schedules import IntervalSchedule
from prefect.server.schemas.schedules import CronSchedule
from prefect.server.schemas.schedules import IntervalSchedule as ServerInterval
from prefect.states import Scheduled

from flows.orphans import NOTES, close_orphans
from flows.retrain import retrain
from flows.schedule import ONE_AT_A_TIME, drop_missed
from flows.serve import end_abandoned, main, make_schedule
from shift_diffusion.config import ConfigError
from tests.flows.conftest import ROOT, wait_until

pytestmark = pytest.mark.slow  # real servers and processes: minutes

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize("cron", ["0 3 * * *", "30 2 * * *", "0 2 * * *"])
@pytest.mark.parametrize("eve", [datetime(2027, 3, 27, 12, tzinfo=BERLIN), datetime(2027, 10, 30, 12, tzinfo=BERLIN)])
def test_one_run_a_day_around_clock_changes(cron, eve):
    """Case 38: 2:30 doesn't exist in spring and comes twice in autumn: one run all the same."""
    ours = make_schedule(cron, None, "Europe/Berlin")
    dates = asyncio.run(CronSchedule(cron=ours.cron, timezone=ours.timezone).get_dates(3, start=eve))
    days = [date.astimezone(BERLIN).date() for date in dates]
    assert days == [(eve + timedelta(days=ahead)).date() for ahead in (1, 2, 3)]


@pytest.mark.parametrize("eve", [datetime(2027, 3, 27, 3, tzinfo=BERLIN), datetime(2027, 10, 30, 3, tzinfo=BERLIN)])
def test_an_interval_of_a_day_keeps_its_hour_around_clock_changes(eve):
    ours = make_schedule(None, 86400, "Europe/Berlin")
    rule = ServerInterval(interval=ours.interval, timezone=ours.timezone, anchor_date=eve - timedelta(days=30))
    dates = [date.astimezone(BERLIN) for date in asyncio.run(rule.get_dates(3, start=eve))]
    assert [(date.date(), date.hour) for date in dates] == [((eve + timedelta(days=k)).date(), 3) for k in range(3)]


@pytest.mark.parametrize(
    ("cron", "interval", "zone", "problem"),
    [("0 3 * *", None, "UTC", "--cron"), ("0 3 * * *", None, "Mars/X", "such zone"), (None, 0, "UTC", "--int")],
)
def test_bad_schedules_are_refused(cron, interval, zone, problem):
    with pytest.raises(ConfigError, match=problem):
        make_schedule(cron, interval, zone)


def test_bad_schedule_exits_with_2(toy, monkeypatch, capsys):
    monkeypatch.chdir(toy.root)
    assert main(["--cron", "every day", "--timezone", "UTC"]) == 2
    assert "not a cron line" in capsys.readouterr().err


@pytest.fixture
def deployment(project, monkeypatch):
    """A deployment of the retraining without anybody to run it."""
    monkeypatch.chdir(project.root)
    made = retrain.to_deployment(name=project.root.parent.name, concurrency_limit=ONE_AT_A_TIME)
    return made.apply()


def runs_of(deployment_id) -> list:
    with get_client(sync_client=True) as client:
        only = DeploymentFilter(id=DeploymentFilterId(any_=[deployment_id]))
        return client.read_flow_runs(deployment_filter=only)


@pytest.mark.parametrize("keep", [0, 1])
def test_missed_dates_collapse(deployment, keep):
    now = datetime.now(UTC)
    with get_client(sync_client=True) as client:
        for hours in (-3, -2, -1, 5):
            state = Scheduled(scheduled_time=now + timedelta(hours=hours))
            client.create_flow_run_from_deployment(deployment, state=state)
    assert drop_missed(deployment, keep=keep) == 3 - keep
    left = [run for run in runs_of(deployment) if run.state.is_scheduled()]
    due = [run.expected_start_time for run in left if run.expected_start_time < now]
    assert len(due) == keep
    assert all(abs(date - (now - timedelta(hours=1))) < timedelta(seconds=1) for date in due), "the latest stands"
    assert len(left) == keep + 1, "a date to come stays"


def test_orphans_are_closed_and_their_slot_is_free(deployment, project):
    """Case 37: Running for ever with the only slot; the note of its dead process gives it away."""
    from prefect.states import Pending, Running

    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(deployment)
        client.set_flow_run_state(run.id, Pending())
        client.set_flow_run_state(run.id, Running())
        blocked = client.create_flow_run_from_deployment(deployment)
        client.set_flow_run_state(blocked.id, Pending())
        assert client.read_flow_run(blocked.id).state_name != "Pending", "the slot is taken"
        notes = project.root / NOTES
        notes.mkdir(parents=True)
        (notes / f"{run.id}.json").write_text(json.dumps({"pid": 2**22 - 3, "started": 1.0, "runner": None}))
        assert close_orphans(project.root) == [str(run.id)]
        assert client.read_flow_run(run.id).state_name == "Crashed"
        free = client.create_flow_run_from_deployment(deployment)
        client.set_flow_run_state(free.id, Pending())
        assert client.read_flow_run(free.id).state_name == "Pending", "the slot is free again"
    assert close_orphans(project.root) == []


def test_flows_whose_runner_was_killed_are_ended(project):
    sleeper = subprocess.Popen(["sleep", "300"])
    alive = psutil.Process(sleeper.pid)
    notes = project.root / NOTES
    notes.mkdir(parents=True)
    record = {"pid": alive.pid, "started": alive.create_time(), "runner": {"pid": 2**22 - 3, "started": 1.0}}
    (notes / "a.json").write_text(json.dumps(record))
    (notes / "b.json").write_text(json.dumps({**record, "pid": os.getpid()}))  # started at another time: not it
    assert end_abandoned(project.root) == [sleeper.pid]
    assert not alive.is_running()


def states_of(name: str) -> list[str]:
    with get_client(sync_client=True) as client:
        found = client.read_deployment_by_name(name)
        return [run.state_name for run in runs_of(found.id)]


def overlaps(project) -> bool:
    """Whether two retrainings ever ran at once: more starts of the first stage than ends of it."""
    running = 0
    for note in project.times():
        if note["stage"] == "prepare":
            running += 1 if note["event"] == "start" else -1
            if running > 1:
                return True
    return False


@pytest.mark.slow
def test_serve_on_a_short_interval_and_after_kill_9(toy):
    """One command: server, schedule, runs; kill -9 of all of it, three missed intervals, and one run on return."""
    toy.control(prepare={"sleep": 300})
    arguments = ["--interval", "5", "--timezone", "UTC", "--port", "0"]
    serve = toy.start_flow("serve", *arguments)
    try:
        toy.wait_for("prepare")
        os.kill(serve.pid, signal.SIGKILL)
        serve.wait()
        time.sleep(20)
        toy.control()
        serve = toy.start_flow("serve", *arguments)
        wait_until(lambda: "one run stands for all" in toy.log(), what="missed dates dropped")
        assert "a flow whose runner had been killed" in toy.log()
        assert "marked Crashed" in toy.log()
        toy.wait_for("register", "end")
        starts = [note["step"] for note in toy.times("start") if note["stage"] == "prepare"]
        assert len(starts) == 2, "one run for all the missed dates"
        assert starts[1] > 0, "it goes on from the checkpoint"
    finally:
        serve.send_signal(signal.SIGINT)
        assert serve.wait(90) in (0, 130)
    wait_until(lambda: not toy.processes(), what="everything gone")


@pytest.mark.slow
def test_worker_of_a_process_pool(project):
    """`prefect deploy` and a worker as a second process: runs there, never two at once."""
    project.env["PROJECT_FOLDER"] = str(project.root)
    text = (ROOT / "prefect.yaml").read_text()
    (project.root / "prefect.yaml").write_text(text)
    prefect = [sys.executable, "-m", "prefect"]
    project.run(*prefect, "work-pool", "create", "local", "--type", "process")
    deployed = project.run(*prefect, "--no-prompt", "deploy", "-n", "process", "--interval", "6")
    assert deployed.returncode == 0, deployed.stdout + deployed.stderr
    project.control(prepare={"sleep": 15})
    with open(project.root / "worker.log", "wb") as log:
        worker = subprocess.Popen(
            [*prefect, "worker", "start", "--pool", "local"],
            cwd=project.root, env={**project.env, "PREFECT_WORKER_QUERY_SECONDS": "2"}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        project.wait_for("register", "end")
        wait_until(lambda: "Completed" in states_of("retrain/process"), what="a completed run")
        wait_until(lambda: "Unchanged" in states_of("retrain/process"), what="a run with nothing to do")
        states = states_of("retrain/process")
        assert states.count("Running") <= 1
        assert not overlaps(project)
        assert not {"Failed", "Crashed"} & set(states)
    finally:
        worker.send_signal(signal.SIGINT)
        worker.wait(60)
        with get_client(sync_client=True) as client:
            client.delete_deployment(client.read_deployment_by_name("retrain/process").id)


def test_intervals_become_interval_schedules():
    made = make_schedule(None, 5, "UTC")
    assert isinstance(made, IntervalSchedule)
    assert (made.interval, made.timezone) == (timedelta(seconds=5), "UTC")
