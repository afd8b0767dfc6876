"""`python -m flows.serve --cron "0 3 * * *" --timezone Europe/Berlin`: server, scheduler and runner in one command.

Everything listens on localhost and ends with this process. One retraining at a time: a date that falls into
a running one is skipped, dates missed while this was down collapse to one run, and flow runs whose process
died are marked Crashed at the start.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID
from zoneinfo import ZoneInfo

import psutil
from prefect.client.orchestration import get_client
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.deployments.runner import EntrypointType
from prefect.exceptions import ObjectNotFound

from flows import orphans
from flows.dvc_stage import GRACE_SECONDS
from flows.pipeline import check_input, run_main
from flows.project import is_alive, project_root
from flows.retrain import retrain
from flows.schedule import ONE_AT_A_TIME, drop_missed
from flows.server import prefect_api
from shift_diffusion.config import ConfigError

NAME = "scheduled"


def make_schedule(cron: str | None, interval: float | None, timezone: str) -> CronSchedule | IntervalSchedule:
    """The schedule; around a clock change exactly one run per due date.

    Raises:
        ConfigError: unknown zone, invalid cron, or an interval below one second.
    """
    problems = []
    try:
        ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        problems.append(f"--timezone {timezone}: no such zone; expected a name such as Europe/Berlin or UTC")
    if interval is not None and interval < 1:
        problems.append(f"--interval {interval}: must be at least 1 second")
    if problems:
        raise ConfigError(problems)
    if interval is not None:
        return IntervalSchedule(interval=timedelta(seconds=interval), timezone=timezone)
    try:
        return CronSchedule(cron=cron, timezone=timezone)
    except ValueError as error:
        raise ConfigError([f"--cron '{cron}': not a cron line such as '0 3 * * *': {error}"]) from error


def end_abandoned(root: Path) -> list[int]:
    """Ends flows whose runner was killed: nobody would hear how they end. Returns their process ids."""
    ended = []
    for note in (root / orphans.NOTES).glob("*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError, psutil.Error):
            record = json.loads(note.read_text())
            if record["runner"] and is_alive(record) and not is_alive(record["runner"]):
                _end(psutil.Process(record["pid"]))
                ended.append(record["pid"])
                note.write_text(json.dumps(record))  # for `close_orphans`: its server is gone, so it told nobody
    return ended


def _end(process: psutil.Process) -> None:
    """Asks the flow to end its stages; it may then wait in vain for its server, so not for long."""
    process.terminate()
    try:
        process.wait(GRACE_SECONDS + 10)
    except psutil.TimeoutExpired:
        process.kill()
        process.wait(10)


@contextlib.contextmanager
def _tidy(root: Path) -> Iterator[None]:
    """Before the first run: no abandoned flow, no orphan in the server's books, one run for all missed dates."""
    for pid in end_abandoned(root):
        print(f"ended process {pid}: a flow whose runner had been killed")
    for run in orphans.close_orphans(root):
        print(f"flow run {run} had died without a word: marked Crashed")
    if missed := drop_missed(_deployment_id(), keep=1) if _deployment_id() else 0:
        print(f"{missed} more dates were missed: one run stands for all")
    yield


def _deployment_id() -> UUID | None:
    with get_client(sync_client=True) as client, contextlib.suppress(ObjectNotFound):
        return client.read_deployment_by_name(f"retrain/{NAME}").id
    return None


def serve(root: Path, schedule: CronSchedule | IntervalSchedule, parameters: dict, port: int | None) -> None:
    """Blocks until Ctrl-C or SIGTERM."""
    with prefect_api(port) as url, _tidy(root):
        print(f"Prefect at {url.removesuffix('/api')}; started {time.strftime('%F %T')}; Ctrl-C ends it", flush=True)
        retrain.serve(
            name=NAME,
            schedule=schedule,
            global_limit=ONE_AT_A_TIME,
            parameters=parameters,
            pause_on_shutdown=False,
            print_starting_message=False,
            entrypoint_type=EntrypointType.MODULE_PATH,
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.serve", description="Retrains on a schedule.")
    when = parser.add_mutually_exclusive_group(required=True)
    when.add_argument("--cron", metavar="LINE", help="such as '0 3 * * *'")
    when.add_argument("--interval", type=float, metavar="SECONDS", help="instead of --cron")
    parser.add_argument("--timezone", required=True, help="such as Europe/Berlin: what the cron line's hours mean")
    parser.add_argument("--port", type=int, default=4200, help="of the server on localhost (default 4200)")
    parser.add_argument("--notify", metavar="TYPE/NAME", help="Prefect notification block to tell the outcomes")
    parser.add_argument("--no-remote", action="store_true", help="leave the DVC remote alone")
    options = parser.parse_args(arguments)
    try:
        schedule = make_schedule(options.cron, options.interval, options.timezone)
        check_input([], [])
    except ConfigError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return 2
    serve(project_root(), schedule, {"notify": options.notify, "remote": not options.no_remote}, options.port)
    return 0


if __name__ == "__main__":
    run_main(main)
