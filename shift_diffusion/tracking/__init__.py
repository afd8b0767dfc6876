"""MLflow as the memory of the past: each execution of a stage leaves a run that tells all that made it.

A stage writes to a local journal (`journal.py`); a thread carries it to MLflow (`background.py`, `sending.py`).
So the server may be slow, away or killed without any stage noticing, and what it missed reaches it later.
"""

from shift_diffusion.tracking.location import code_root, project_root, redact, tracking_uri
from shift_diffusion.tracking.run import NullRun, Run, track_stage
from shift_diffusion.tracking.store import TrackingError

__all__ = ["NullRun", "Run", "TrackingError", "code_root", "project_root", "redact", "track_stage", "tracking_uri"]
