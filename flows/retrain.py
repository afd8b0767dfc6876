"""`python -m flows.retrain`: new data, parameters or code become a new model; the gate decides which one serves.

    python -m flows.retrain [--set KEY=VALUE ...] [--notify BLOCK] [--no-remote]

Nothing new: the flow ends as "Unchanged" in seconds, without training and without a new version. The stage
`register` compares with the champion and promotes or keeps; its reason becomes the flow's message.
Where a DVC remote is configured, results are pulled before and pushed after.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, State
from prefect.task_runners import ThreadPoolTaskRunner

from flows import orphans, overrides, schedule
from flows.artifacts import publish_results
from flows.dag import read_dag
from flows.dvc_stage import Command, run_dvc
from flows.news import NEW_DATA, what_is_new
from flows.notify import notify_about
from flows.pipeline import WORKERS, check_input, exit_code, run_main, run_stages
from flows.project import hold_project, project_root
from flows.server import prefect_api
from shift_diffusion.config import ConfigError, Params

REGISTERED = Path("reports/register.json")


@flow(name="retrain", task_runner=ThreadPoolTaskRunner(max_workers=WORKERS), persist_result=False)
def retrain(set_params: list[str] | None = None, notify: str | None = None, remote: bool = True) -> State:
    """Retrains if there is anything new, and says why the new model serves or doesn't.

    set_params: KEY=VALUE changes to params.yaml, checked before any work.
    notify: a Prefect notification block, as TYPE/NAME; None = tell nobody.
    remote: pull from and push to the default DVC remote, if one is configured.
    """
    root = project_root()
    try:
        with hold_project(root) as lock, orphans.note_run(root, flow_run.id):
            for orphan in orphans.close_orphans(root):
                get_run_logger().warning("flow run %s had died without a word: marked Crashed", orphan)
            schedule.drop_missed()
            params = overrides.apply(root / "params.yaml", set_params or [])
            state = _retrain(root, lock, params, remote and has_remote(root))
            schedule.drop_missed()  # what came due meanwhile: the next date will do
    except KeyboardInterrupt:
        return Cancelled(message="Ctrl-C")
    notify_about(notify, state)
    return state


def _retrain(root: Path, lock: int, params: Params, remote: bool) -> State:
    if remote:
        transfer(root, lock, ["pull", "--force", "--run-cache", "--allow-missing"])
    new = what_is_new(root, lock, params)
    if not new:
        return Completed(name="Unchanged", message="unchanged: no new data, parameters or code")
    get_run_logger().info("new: %s", "; ".join(new))
    before = registered(root)
    state = run_stages(root, lock, read_dag(root), force=("prepare",) if NEW_DATA in new else ())
    if not state.is_completed():
        return state
    if remote:
        transfer(root, lock, ["push", "--run-cache"])
    reason = decision(before, registered(root))
    publish_results(root, "Retraining", reason=reason, new=new)
    return Completed(message=f"{reason} (new: {'; '.join(new)})")


def has_remote(root: Path) -> bool:
    from dvc.config import Config

    return bool(Config(dvc_dir=str(root / ".dvc")).get("core", {}).get("remote"))


@task(name="dvc-remote", retries=3, retry_delay_seconds=[10, 30, 90], cache_policy=NO_CACHE, persist_result=False)
def transfer(root: Path, lock: int, arguments: list[str]) -> None:
    """`dvc pull` or `dvc push`, retried: networks recover."""
    run_dvc(Command(arguments, root, get_run_logger().info, keep=(lock,)))


def registered(root: Path) -> dict | None:
    """What the last `register` wrote; None before the first."""
    path = root / REGISTERED
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None


def decision(before: dict | None, now: dict | None) -> str:
    """The gate's decision in one line."""
    if now is None:
        return "no stage `register` in this pipeline: nothing registered"
    if now == before:
        return f"no new version: the change made no difference to what version {now['version']} was judged by"
    known = before is not None and before["version"] == now["version"]
    return f"{now['decision']}: {'known' if known else 'new'} version {now['version']}: {now['reason']}"


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m flows.retrain", description="Retrains when there is a reason to.")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change params.yaml first")
    parser.add_argument("--notify", metavar="TYPE/NAME", help="Prefect notification block to tell the outcome")
    parser.add_argument("--no-remote", action="store_true", help="leave the DVC remote alone")
    options = parser.parse_args(arguments)
    try:
        check_input([], options.set)
    except ConfigError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return 2
    with prefect_api():
        return exit_code(retrain(options.set, options.notify, not options.no_remote, return_state=True))


if __name__ == "__main__":
    run_main(main)
