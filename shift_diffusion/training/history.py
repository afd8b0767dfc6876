"""What a run tells about itself: a row per logged or validated step, and the sums of the interval not yet over."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass, field
from typing import Any

from shift_diffusion.training.engine import StepResult
from shift_diffusion.training.objective import NUM_QUARTILES

_QUARTILES = tuple(f"q{k + 1}" for k in range(NUM_QUARTILES))  # q1 = least noise
COLUMNS = (
    *("step", "images", "loss", *(f"loss_{q}" for q in _QUARTILES), "lr", "grad_norm", "skipped_steps", "rollbacks"),
    *("validation_loss", *(f"validation_loss_{q}" for q in _QUARTILES)),
)
SUMMARY_SHARE = 10  # the reported training loss is the mean over the last 1/10 of the rows

Row = dict[str, float | int]


@dataclass
class Interval:
    """Sums over the applied steps since the last row."""

    steps: int = 0
    loss: float = 0.0
    sums: list[float] = field(default_factory=lambda: [0.0] * NUM_QUARTILES)
    counts: list[float] = field(default_factory=lambda: [0.0] * NUM_QUARTILES)
    grad_norm: float = 0.0  # of the last step

    def add(self, result: StepResult) -> None:
        self.steps += 1
        self.loss += result.loss
        self.grad_norm = result.grad_norm
        for k, (total, count) in enumerate(result.quartile_losses):
            self.sums[k] += total
            self.counts[k] += count

    def values(self) -> Row:
        quartiles = zip(_QUARTILES, self.sums, self.counts, strict=True)
        means = {f"loss_{q}": total / count for q, total, count in quartiles if count}
        return {"loss": self.loss / self.steps, **means, "grad_norm": self.grad_norm}


class History:
    """Rows in order of the step; part of every checkpoint: a resumed run reports the same as an unbroken one."""

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.interval = Interval()

    def close_row(self, step: int, images: int, **values: float) -> Row:
        """Ends the interval; the row of the step."""
        row = {"step": step, "images": images, **self.interval.values(), **values}
        self.rows.append(row)
        self.interval = Interval()
        return row

    def add_validation(self, step: int, images: int, values: Row) -> None:
        if not (self.rows and self.rows[-1]["step"] == step):
            self.rows.append({"step": step, "images": images})
        self.rows[-1].update(values)

    def is_validated(self, step: int) -> bool:
        return bool(self.rows) and self.rows[-1]["step"] == step and "validation_loss" in self.rows[-1]

    def series(self, column: str) -> tuple[list[float], list[float]]:
        """(steps, values) of the rows that have the column."""
        rows = [row for row in self.rows if column in row]
        return [row["step"] for row in rows], [row[column] for row in rows]

    def summary(self) -> dict[str, float]:
        """Mean training loss of the last part of the run, and the last value of everything else."""
        losses = self.series("loss")[1]
        last = {column: values[-1] for column in COLUMNS if (values := self.series(column)[1])}
        tail = losses[-max(len(losses) // SUMMARY_SHARE, 1) :]
        return {**last, "loss": sum(tail) / len(tail)}

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        return out.getvalue()

    def state(self) -> dict[str, Any]:
        return {"rows": self.rows, "interval": vars(self.interval)}

    def load(self, state: dict[str, Any]) -> None:
        self.rows = [dict(row) for row in state["rows"]]
        self.interval = Interval(**state["interval"])
