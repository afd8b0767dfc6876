"""Content-addressed results that survive between runs: a key names what was computed from, a value never changes.

It decides nothing about freshness (DVC does that); it only saves decoding a picture or encoding a caption
again. One SQLite file, which any number of processes may read while one writes. Safe to delete at any time.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

_SCHEMA = "CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID"


class Cache:
    """Bytes by key. A file that can't be used counts as empty: the cache is never a reason to fail."""

    def __init__(self, path: Path | None):
        """`path` None makes a cache that holds nothing."""
        self.path, self._connection = path, None
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._connection = self._open(path)
        except (sqlite3.Error, OSError):
            self._discard(path)

    @staticmethod
    def _open(path: Path) -> sqlite3.Connection:
        connection = sqlite3.connect(path, timeout=30)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")  # a crash may lose entries, which costs time only
        connection.execute(_SCHEMA)
        connection.commit()
        return connection

    def _discard(self, path: Path) -> None:
        try:
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            self._connection = self._open(path)
        except (sqlite3.Error, OSError):
            self._connection = None

    def get(self, key: str) -> bytes | None:
        if self._connection is None:
            return None
        try:
            row = self._connection.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        except sqlite3.Error:
            return None
        return None if row is None else row[0]

    def put(self, entries: Mapping[str, bytes]) -> None:
        """Stores several entries in one transaction; an existing key keeps its value."""
        if self._connection is None or not entries:
            return
        try:
            with self._connection:
                self._connection.executemany("INSERT OR IGNORE INTO entries VALUES (?, ?)", entries.items())
        except sqlite3.Error:
            self._connection.rollback()

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
