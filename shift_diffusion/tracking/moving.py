"""A project that was moved or copied still finds its artifacts.

MLflow stores absolute artifact paths in its database. Once the default database finds its experiment pointing to
another folder than the `mlartifacts` beside it, the paths are rewritten, after a copy of the database was kept. By
hand: `python -m shift_diffusion.tracking.moving`.
"""

from __future__ import annotations

import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

from shift_diffusion.tracking.location import artifact_root, default_database, experiment_name

COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("model_versions", "source"),
    ("model_versions", "storage_location"),
    ("logged_models", "artifact_location"),
)


def mend_after_move(database: Path, artifacts: Path) -> int:
    """Rewrites the paths of a moved project's database; returns the number of changed rows (0 where nothing moved).

    database: mlflow.db of the project. artifacts: the folder that must hold the artifacts from now on.
    """
    if not database.is_file():
        return 0
    with closing(sqlite3.connect(database, timeout=30)) as connection:
        old, new = _location(connection), artifacts.as_uri()
        if old is None or old == new or not old.startswith("file:"):
            return 0
        shutil.copyfile(database, database.with_suffix(".db.before-move"))
        with connection:
            changed = sum(_rewrite(connection, table, column, old, new) for table, column in COLUMNS)
    print(f"MLflow: the project was moved here, {changed} artifact paths now point to {artifacts}", file=sys.stderr)
    return changed


def _location(connection: sqlite3.Connection) -> str | None:
    try:
        row = connection.execute(
            "SELECT artifact_location FROM experiments WHERE name = ?", (experiment_name(),)
        ).fetchone()
    except sqlite3.OperationalError:  # an empty database: MLflow is about to create the tables
        return None
    return row[0] if row else None


def _rewrite(connection: sqlite3.Connection, table: str, column: str, old: str, new: str) -> int:
    known = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    if column not in known:
        return 0
    # table and column are the constants above
    statement = f"UPDATE {table} SET {column} = ? || substr({column}, ?) WHERE {column} = ? OR {column} LIKE ? || '/%'"
    return connection.execute(statement, (new, len(old) + 1, old, old)).rowcount  # noqa: S608


def main() -> int:
    database = default_database()
    if database is None:
        print("MLFLOW_TRACKING_URI names another store: its server knows where its artifacts are", file=sys.stderr)
        return 2
    if mend_after_move(database, artifact_root()) == 0:
        print(f"Nothing to mend: {database} points to {artifact_root()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
