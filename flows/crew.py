"""Runs the stages of a DAG as Prefect tasks: independent ones at once, none after a failure."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.futures import PrefectFuture, wait
from prefect.logging import get_run_logger
from prefect.states import Cancelled, Completed, Failed, State

from flows.dag import Node
from flows.dvc_stage import Command, StageFailed, StageStopped, StageTimedOut, run_dvc
from flows.project import release_dead_locks

RETRY_DELAY_SECONDS = 10.0  # for the memory of a killed stage to be free again


@dataclass
class Crew:
    """What the stages of one flow run share.

    lock: descriptor of the project's lock, kept open by every stage.
    stop: set = end what runs.           failed: set = start nothing more, let what runs finish.
    """

    root: Path
    lock: int
    force: tuple[str, ...] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    failed: threading.Event = field(default_factory=threading.Event)

    def run(self, dag: dict[str, Node]) -> dict[str, State]:
        """Runs all stages of the DAG and returns their final states.

        An exception in the calling thread (Ctrl-C, cancellation) ends all running stages first.
        """
        futures: dict[str, PrefectFuture] = {}
        try:
            for node in dag.values():
                before = [futures[name] for name in node.after if name in futures]
                futures[node.name] = self.task(node).submit(wait_for=before)
            _join(futures.values())
        except BaseException:
            self.stop.set()
            _join(futures.values())
            raise
        return {name: future.state for name, future in futures.items()}

    def task(self, node: Node) -> Task:
        """Never cached: DVC alone knows what is stale. Repeated only after a crash: stages resume."""
        return Task(
            fn=lambda: self.reproduce(node),
            name=node.name,
            description=f"dvc repro --single-item {node.name}",
            cache_policy=NO_CACHE,
            persist_result=False,
            retries=node.retries,
            retry_delay_seconds=RETRY_DELAY_SECONDS,
            retry_condition_fn=lambda task, run, state: self.worth_retrying(state),
        )

    def worth_retrying(self, state: State) -> bool:
        return state.name == "Killed" and not self.stop.is_set()

    def reproduce(self, node: Node) -> State:
        """The body of a stage's task; its result is the task's final state."""
        if self.stop.is_set() or self.failed.is_set():
            return Cancelled(name="NotStarted", message="another stage failed or the flow was stopped")
        log = get_run_logger()
        for path in release_dead_locks(self.root):
            log.warning("a killed DVC process had left %s locked: freed", path)
        force = ["--force"] if node.name in self.force else []
        command = ["repro", "--single-item", *force, node.name]
        try:
            output = run_dvc(
                Command(command, self.root, log.info, time_limit=node.time_limit, stop=self.stop, keep=(self.lock,))
            )
        except StageFailed as error:
            state = _failure(error)
            if not self.worth_retrying(state):
                self.failed.set()
            return state
        finally:
            release_dead_locks(self.root)
        unchanged = "didn't change, skipping" in output or "is cached - skipping run" in output
        return Completed(name="Unchanged") if unchanged else Completed()


def _failure(error: StageFailed) -> State:
    if isinstance(error, StageStopped):
        return Cancelled(message=str(error))
    if isinstance(error, StageTimedOut):
        return Failed(name="TimedOut", message=str(error), data=error)
    return Failed(name="Killed" if error.crashed else "Failed", message=str(error), data=error)


def _join(futures: Iterable[PrefectFuture]) -> None:
    """Waits for all, in short steps, so that signals reach this thread."""
    waiting = list(futures)
    while waiting:
        done, waiting = wait(waiting, timeout=0.5)
        for future in done:
            future.wait()  # takes over the final state, which the server knows only later
