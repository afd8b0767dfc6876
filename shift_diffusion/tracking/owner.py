"""Which process owns a run, and does it still live? Process ids come back, so the start time counts too."""

from __future__ import annotations

import os
import socket

import psutil

SECONDS_OF_TOLERANCE = 2.0  # boot time, from which the start is derived, may be corrected by a time server


def this_process() -> dict:
    """`{"pid": int, "started": seconds since the epoch, "host": str}` of the caller."""
    pid = os.getpid()
    return {"pid": pid, "started": psutil.Process(pid).create_time(), "host": socket.gethostname()}


def has_vanished(owner: dict) -> bool:
    """True only where it is certain: the owner ran on this host and is gone, or its number has been given away."""
    if owner.get("host") != socket.gethostname():
        return False
    try:
        process = psutil.Process(int(owner["pid"]))
        same = abs(process.create_time() - float(owner["started"])) < SECONDS_OF_TOLERANCE
        return not same or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, KeyError, TypeError, ValueError):
        return False
