"""Which Prefect API a flow talks to: the configured one, one already running here, or one of its own."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
from prefect.settings import PREFECT_API_URL, get_current_settings, temporary_settings

from flows import leash
from flows.project import is_alive, this_process

START_SECONDS = 180.0  # 5 to 10 s on an idle machine, far more on a loaded one
GRACE_SECONDS = 10.0


@contextlib.contextmanager
def prefect_api(port: int | None = None) -> Iterator[str]:
    """Yields the API's address and points Prefect's client at it.

    Order: PREFECT_API_URL (environment or profile); the server another flow of this PREFECT_HOME has
    running; else a server of our own on localhost that ends with this process, however it ends.
    """
    if configured := get_current_settings().api.url:
        yield configured
        return
    home = get_current_settings().home.resolve()
    home.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        with _starting(home):
            url = _recorded(home) or stack.enter_context(_own_server(home, port or _free_port()))
        stack.enter_context(temporary_settings({PREFECT_API_URL: url}))
        yield url
        _drain()


@contextlib.contextmanager
def _starting(home: Path) -> Iterator[None]:
    """One start at a time: two servers on one SQLite file lock each other out."""
    with open(home / "server.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _recorded(home: Path) -> str | None:
    """The address of a server that another flow started here, if that flow lives and the server answers.

    The server of a killed flow is about to be ended by its leash: waits for that, as the next one needs
    its database.
    """
    try:
        record = json.loads((home / "server.json").read_text())
        owner, holder = record["owner"], record["leash"]
    except (OSError, ValueError, KeyError):
        return None
    if is_alive(owner) and healthy(record["url"]):
        return record["url"]
    end = time.monotonic() + GRACE_SECONDS + 10
    while is_alive(holder) and time.monotonic() < end:
        time.sleep(0.2)
    return None


def healthy(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def _own_server(home: Path, port: int) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}/api"
    read_end, write_end = os.pipe()
    with open(home / "server.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, leash.__file__, str(read_end), str(GRACE_SECONDS), *_server_command(port)],
            env=_environment(home, url),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(read_end,),
            start_new_session=True,
        )
    os.close(read_end)
    try:
        _wait_until_healthy(process, url, home / "server.log")
        (home / "server.json").write_text(
            json.dumps({"url": url, "owner": this_process(), "leash": this_process(process.pid)})
        )
        yield url
    finally:
        os.close(write_end)
        process.wait(GRACE_SECONDS + 10)
        (home / "server.json").unlink(missing_ok=True)


def _environment(home: Path, url: str) -> dict[str, str]:
    """No telemetry, no advertising; the pages must be told the address when it isn't the usual one."""
    own = {"PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false"}
    return {**os.environ, **own, "PREFECT_HOME": str(home), "PREFECT_SERVER_UI_API_URL": url}


def _server_command(port: int) -> list[str]:
    return [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]


def _wait_until_healthy(process: subprocess.Popen, url: str, log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while not healthy(url):
        if process.poll() is not None or time.monotonic() > end:
            last = "\n".join(log.read_text(errors="replace").splitlines()[-10:])
            raise RuntimeError(f"the Prefect server did not start at {url}; the end of {log}:\n{last}")
        time.sleep(0.2)


def _drain() -> None:
    """Sends what the client still buffers: task run states travel as events, in the background."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    EventsWorker.drain_all()
    APILogWorker.instance().drain()
