"""Real servers on localhost for the tests: MLflow on SQLite or PostgreSQL."""

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class MlflowServer:
    """`mlflow server` as a process group that can be started and killed again on the same port."""

    def __init__(self, folder: Path, backend: str):
        self.folder, self.backend, self.port = folder, backend, free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--workers", "1", "--backend-store-uri", self.backend, "--serve-artifacts"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
        env.pop("MLFLOW_TRACKING_URI", None)
        log = open(self.folder / "server.log", "ab")  # noqa: SIM115 - the process keeps it
        self._process = subprocess.Popen(
            command, cwd=self.folder, env=env, stdout=log, stderr=log, start_new_session=True
        )
        wait_for_page(f"{self.uri}/health", self._process)

    def kill(self) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
                os.killpg(self._process.pid, 9)
            self._process.wait()
            self._process = None


def wait_for_page(url: str, process: subprocess.Popen, timeout: float = 400) -> None:
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        assert process.poll() is None, f"server ended with {process.returncode}"
        try:
            urllib.request.urlopen(url, timeout=5)
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"no answer from {url} within {timeout} s")


class Postgres:
    """A PostgreSQL of its own with a password; Debian's package, run as user postgres where we are root."""

    PASSWORD = "hunter2"

    def __init__(self):
        self.binaries = _postgres_binaries()
        self.folder = Path(tempfile.mkdtemp(prefix="postgres-"))  # pytest's own folders are closed to other users
        self.port = free_port()
        self.uri = f"postgresql+psycopg2://mlflow:{self.PASSWORD}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        secret = self.folder / "password"
        secret.write_text(self.PASSWORD)
        if os.geteuid() == 0:
            for path in (self.folder, secret):
                shutil.chown(path, "postgres")
        data = str(self.folder / "data")
        self._run("initdb", "-D", data, "-U", "mlflow", "-A", "scram-sha-256", "--pwfile", str(secret))
        options = f"-p {self.port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        self._run("pg_ctl", "-D", data, "-w", "-l", str(self.folder / "postgres.log"), "-o", options, "start")

    def stop(self) -> None:
        self._run("pg_ctl", "-D", str(self.folder / "data"), "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, name: str, *arguments: str) -> None:
        command = [str(self.binaries / name), *arguments]
        if os.geteuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        subprocess.run(command, check=True, cwd=self.folder, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)


def _postgres_binaries() -> Path:
    pytest.importorskip("psycopg2", reason="psycopg2-binary isn't installed")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin")) if Path("/usr/lib/postgresql").is_dir() else []
    if found:
        return found[-1]
    if binary := shutil.which("initdb"):
        return Path(binary).resolve().parent
    pytest.skip("PostgreSQL isn't installed")
