"""`python -m flows.pipeline`: the DAG of dvc.yaml as a Prefect flow.

    python -m flows.pipeline [--stage NAME ...] [--force] [--set KEY=VALUE ...]

Exit codes: 0 completed; 1 a stage failed, was killed or timed out, or the project is busy; 2 bad input,
nothing was started; 130 Ctrl-C; 143 terminated.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from prefect import flow
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled, Completed, Failed, State
from prefect.task_runners import ThreadPoolTaskRunner

from flows import orphans, overrides
from flows.artifacts import publish_results
from flows.crew import Crew
from flows.dag import Node, read_dag, select
from flows.project import hold_project, project_root
from flows.server import prefect_api
from shift_diffusion.config import ConfigError

WORKERS = 64  # threads that mostly wait: one per stage, so that none queues behind a waiting one


@flow(name="pipeline", task_runner=ThreadPoolTaskRunner(max_workers=WORKERS), persist_result=False)
def pipeline(stages: list[str] | None = None, force: bool = False, set_params: list[str] | None = None) -> State:
    """Runs the stages (all, or the named ones with what they depend on) through DVC.

    force: runs the named stages (all, when none is named) even when DVC finds nothing changed.
    set_params: KEY=VALUE changes to params.yaml, checked before any work.
    """
    root = project_root()
    try:
        with hold_project(root) as lock, orphans.note_run(root, flow_run.id):
            for orphan in orphans.close_orphans(root):
                get_run_logger().warning("flow run %s had died without a word: marked Crashed", orphan)
            overrides.apply(root / "params.yaml", set_params or [])
            dag = select(read_dag(root), stages or [])
            forced = tuple(stages or dag) if force else ()
            state = run_stages(root, lock, dag, forced)
            if state.is_completed():
                publish_results(root, "Pipeline")
            return state
    except KeyboardInterrupt:
        return Cancelled(message="Ctrl-C")


def run_stages(root: Path, lock: int, dag: dict[str, Node], force: tuple[str, ...] = ()) -> State:
    """The stages as tasks of the running flow; the state tells which of them failed and why."""
    states = Crew(root, lock, force).run(dag)
    failed = {name: state for name, state in states.items() if state.is_failed() or state.is_crashed()}
    if failed:
        reasons = "; ".join(f"{name}: {state.name}" for name, state in failed.items())
        first = next(iter(failed.values()))
        return Failed(message=f"{reasons}\n{first.message}")
    if any(not state.is_completed() for state in states.values()):
        return Cancelled(message="stopped before the end")
    ran = [name for name, state in states.items() if state.name != "Unchanged"]
    return Completed(message=f"ran: {', '.join(ran)}" if ran else "unchanged: DVC found nothing to do")


def exit_code(state: State) -> int:
    """What the shell gets for a flow's final state."""
    if state.is_completed():
        return 0
    print(f"{state.name}: {state.message}", file=sys.stderr)
    return 130 if state.is_cancelled() else 1


def check_input(stages: list[str], set_params: list[str]) -> None:
    """Everything that can be refused before any work, in a second or two; raises ConfigError."""
    try:
        root = project_root()
    except FileNotFoundError as error:
        raise ConfigError([str(error)]) from error
    overrides.check(root / "params.yaml", set_params)
    select(read_dag(root), stages)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m flows.pipeline", description="Runs the DVC pipeline under Prefect."
    )
    parser.add_argument("--stage", action="append", default=[], metavar="NAME", help="run it and what it depends on")
    parser.add_argument("--force", action="store_true", help="run the named stages (or all) even if nothing changed")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change params.yaml first")
    options = parser.parse_args(arguments)
    try:
        check_input(options.stage, options.set)
    except ConfigError as error:
        print("\n".join(error.problems), file=sys.stderr)
        return 2
    with prefect_api():
        return exit_code(pipeline(options.stage, options.force, options.set, return_state=True))


def run_main(entry) -> None:
    """Runs a command line entry; Ctrl-C outside the flow's body ends with 130, without a traceback."""
    try:
        sys.exit(entry())
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run_main(main)
