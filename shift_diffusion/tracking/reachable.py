"""Says at once that a database can't be used. MLflow would try for a hundred seconds (read-only folder, no host)."""

from __future__ import annotations

import socket
from pathlib import Path
from urllib.parse import urlsplit

PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
TIMEOUT_S = 5.0


def check(uri: str) -> None:
    """Raises OSError when the SQLite file can't be written or the database server doesn't listen.

    HTTP servers are left to MLflow, which is told how often to try.
    """
    if uri.startswith("sqlite:///"):
        _check_file(Path(uri.removeprefix("sqlite:///").partition("?")[0]))
        return
    parts = urlsplit(uri)
    port = PORTS.get(parts.scheme.partition("+")[0])
    if port is not None and parts.hostname:
        socket.create_connection((parts.hostname, parts.port or port), TIMEOUT_S).close()


def _check_file(path: Path) -> None:
    if path.exists():
        with open(path, "ab"):  # nothing is written; permissions alone say little on a read-only file system
            return
    probe = path.with_name(f".{path.name}.probe")
    probe.touch()
    probe.unlink(missing_ok=True)
