"""The thread that sends a stage's journal while the stage works, and what is left of earlier ones."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

from shift_diffusion.tracking.journal import Journal, journals
from shift_diffusion.tracking.location import redact, tracking_uri
from shift_diffusion.tracking.owner import has_vanished

INTERVAL_S = 2.0
LONGEST_PAUSE_S = 30.0


def say(message: str) -> None:
    print(f"MLflow: {redact(message)}", file=sys.stderr, flush=True)


class Sender(threading.Thread):
    """Sends `journal` every two seconds, with growing pauses while MLflow is away. One warning, one all-clear."""

    def __init__(self, journal: Journal, root: Path):
        super().__init__(name="mlflow-sender", daemon=True)
        self.journal, self.root = journal, root
        self.failures = 0
        self.last_error = ""
        self._store = None
        self._swept = False
        self._wake, self._finish, self._done = threading.Event(), threading.Event(), threading.Event()

    def run(self) -> None:
        while True:
            finishing = self._finish.is_set()
            closed = self.attempt()
            if closed or (finishing and self.failures):
                break
            if not finishing and self.failures == 0:
                self._leftovers()
            pause = min(INTERVAL_S * 2**self.failures, LONGEST_PAUSE_S)
            self._wake.wait(0.05 if self._finish.is_set() else pause)
            self._wake.clear()
        self._done.set()

    def attempt(self) -> bool:
        """One round; True once the journal is sent and closed."""
        from shift_diffusion.tracking.store import open_store

        try:
            self._store = self._store or open_store(self.root)
            closed = send_locked(self.journal, self._store)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong on the way to a server, the stage goes on
            self._failed(error)
            return False
        if self.failures:
            say("reachable again; the buffered values have been sent")
        self.failures = 0
        return closed

    def _failed(self, error: Exception) -> None:
        self.last_error = redact(f"{type(error).__name__}: {' '.join(str(error).split())}")[:300]
        if self.failures == 0:
            say(
                f"{tracking_uri(self.root)} can't be used ({self.last_error}). Work goes on; values are kept in "
                f"{self.journal.folder} and sent later"
            )
        self.failures += 1

    def _leftovers(self) -> None:
        """Once per process, after its own run exists: older journals, runs of vanished processes."""
        if self._swept:
            return
        self._swept = True
        try:
            sweep(self.journal.folder.parent, self._store)
        except Exception as error:  # noqa: BLE001 - the next start tries again
            say(f"earlier runs could not be completed: {error}")

    def finish(self, timeout: float) -> bool:
        """Waits until everything is sent, at most `timeout` seconds; False where the rest stays in the journal."""
        self._finish.set()
        self._wake.set()
        self._done.wait(timeout)
        return not self.journal.events_file.exists()


def send_locked(journal: Journal, store) -> bool:
    from shift_diffusion.tracking.sending import send

    lock = journal.try_lock()
    if lock is None:
        return False
    try:
        return send(journal, store)
    finally:
        lock.release()


def sweep(folder: Path, store) -> int:
    """Sends and closes the journals of processes that are gone, then closes orphans on the server; returns how many."""
    from shift_diffusion.tracking.parents import close_orphans

    count = 0
    for journal in journals(folder):
        start = journal.first()
        if start is None or not has_vanished(start.get("owner", {})):
            continue
        _close(journal)
        count += send_locked(journal, store)
    return count + len(close_orphans(store))


def _close(journal: Journal) -> None:
    """A journal without an end was cut off by kill -9 or power failure: the run was KILLED at its last sign of life."""
    events = [event for _, event in journal.read()]
    if events[-1]["kind"] == "end":
        return
    _finish_line(journal)
    journal.append("tags", values={"ended_by": "process vanished"})
    journal.append("end", status="KILLED", time=events[-1]["time"])


def _finish_line(journal: Journal) -> None:
    """A line cut in the middle would swallow the next one."""
    with open(journal.events_file, "rb+") as file:
        content = file.read()
        if not content.endswith(b"\n"):
            file.write(b"\n")


def wait_for(condition, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True
