"""Watches each step before the weights are changed: apply it, skip it, go back to a checkpoint, or stop the run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

WARM_UP = 50  # steps before a loss can be called a spike
MEMORY = 0.98  # of the running mean of the loss
LEAD = 10  # draws before a spike that are left out as well when its stretch is gone through again


class Verdict(Enum):
    APPLY = "apply"
    SKIP = "skip"
    ROLL_BACK = "roll back"


class TrainingDiverged(RuntimeError):
    """The run can't go on by itself; the message says where, why and what to change."""


@dataclass
class Guard:
    """Health of a run. The fields are its whole state: a run that resumes judges as the unbroken one does.

    A step is bad when its loss or gradient norm isn't finite: it is skipped and its draw used up; `max_bad_steps` in
    a row end the run. A loss above `spike_factor` times the running mean sends the run back to the last regular
    checkpoint, once, leaving out the draws around the spike; later spikes count as bad steps.
    """

    max_bad_steps: int
    spike_factor: float
    skipped_steps: int = 0
    rollbacks: int = 0
    bad_in_a_row: int = 0
    num_good: int = 0
    mean_loss: float = 0.0
    left_out: list[int] = field(default_factory=list)  # [first, last] draw that the roll-back leaves out, or empty

    def judge(self, draw: int, loss: float, grad_norm: float) -> Verdict:
        """Decides about one step, from its mean loss and the norm of its unscaled, unclipped gradient."""
        if not (math.isfinite(loss) and math.isfinite(grad_norm)):
            return self._skip()
        if self.num_good >= WARM_UP and loss > self.spike_factor * self.mean_loss:
            if self.rollbacks:
                return self._skip()
            return Verdict.ROLL_BACK
        self.bad_in_a_row = 0
        memory = min(MEMORY, self.num_good / (self.num_good + 1))
        self.mean_loss = memory * self.mean_loss + (1 - memory) * loss
        self.num_good += 1
        return Verdict.APPLY

    def is_left_out(self, draw: int) -> bool:
        return bool(self.left_out) and self.left_out[0] <= draw <= self.left_out[1]

    def leave_out(self) -> None:
        """Counts a draw of the left-out stretch, which is passed over unseen."""
        self.skipped_steps += 1

    def went_back(self, spike_draw: int) -> None:
        """To be called on the checkpoint's guard, after the roll-back because of a spike at `spike_draw`."""
        self.rollbacks += 1
        self.left_out = [spike_draw - LEAD, spike_draw]

    @property
    def must_stop(self) -> bool:
        return self.bad_in_a_row >= self.max_bad_steps

    def diagnosis(self, step: int, loss: float, grad_norm: float, noise_levels: list[float], ids: list[str]) -> str:
        """The message that ends a run, for the batch of its last bad step."""
        kind = "loss" if not math.isfinite(loss) else "gradient" if not math.isfinite(grad_norm) else "spiking loss"
        levels = ", ".join(f"{level:.3f}" for level in noise_levels)
        return (
            f"{self.bad_in_a_row} bad steps in a row at step {step}: {kind} (loss {loss:.4g}, gradient norm "
            f"{grad_norm:.4g}, running mean of the loss {self.mean_loss:.4g}).\n"
            f"Noise levels t of the last batch: {levels}\nFiles of the last batch: {', '.join(ids)}\n"
            "Weights are those of the last good step. Lower lr or lengthen warmup of this stage, or look at the files."
        )

    def state(self) -> dict[str, Any]:
        """JSON-able; without the settings, which come from params.yaml."""
        return {k: v for k, v in asdict(self).items() if k not in ("max_bad_steps", "spike_factor")}

    def load(self, state: dict[str, Any]) -> None:
        for key, value in state.items():
            setattr(self, key, value)

    def _skip(self) -> Verdict:
        self.skipped_steps += 1
        self.bad_in_a_row += 1
        return Verdict.SKIP
