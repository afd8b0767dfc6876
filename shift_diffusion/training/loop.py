"""One stage of training from its first step, or its newest checkpoint, to its end. The cadence only: see `engine`."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shift_diffusion.config import Params
from shift_diffusion.data.store import PreparedData
from shift_diffusion.models.unet import NestedUNet, network_config, network_from_config
from shift_diffusion.process.schedules import schedule_of
from shift_diffusion.progress import Progress
from shift_diffusion.runtime import Environment, peak_memory_mb, set_up
from shift_diffusion.stage import Terminated
from shift_diffusion.training import rng
from shift_diffusion.training.batches import Ahead, Batch, TrainingBatches
from shift_diffusion.training.checkpoint import Checkpoint, CheckpointError, CheckpointFolder, check_space
from shift_diffusion.training.clock import Clock
from shift_diffusion.training.engine import StepResult
from shift_diffusion.training.guard import TrainingDiverged, Verdict
from shift_diffusion.training.history import History
from shift_diffusion.training.identity import run_hash
from shift_diffusion.training.interrupt import StopRequest
from shift_diffusion.training.lr import learning_rate
from shift_diffusion.training.parallel import Parallel
from shift_diffusion.training.start import bytes_to_keep, check_stage, make_engine, start_network
from shift_diffusion.training.validation import Validation

OnMetrics = Callable[[int, dict[str, float]], None]  # (optimizer step, name -> value)
OnSamples = Callable[[int, Tensor], None]  # (optimizer step, pictures (N, 3, R, R) uint8)


@dataclass(frozen=True)
class Result:
    """A finished stage, the same for the same inputs to the last bit; networks are on the CPU.

    averaged: with the EMA's weights. config: for `save_network`. metrics: for reports/stage-N/metrics.json.
    samples: (N, 3, R, R) uint8. is_main: this process is the one to write it down.
    """

    averaged: NestedUNet
    raw: NestedUNet
    config: dict[str, Any]
    metrics: dict[str, float]
    history: History
    samples: Tensor
    is_main: bool


def train(
    stage: int,
    params: Params,
    data: PreparedData,
    checkpoint_root: Path,
    init: NestedUNet | None = None,
    *,
    on_metrics: OnMetrics = lambda step, values: None,
    on_samples: OnSamples = lambda step, pictures: None,
) -> Result:
    """Trains stage 1..3.

    Args:
        checkpoint_root: the checkpoints lie in a folder in it that is named after all that determines the run.
        init: the averaged network of the stage before, to be grown; None starts with fresh weights.
        on_metrics, on_samples: called on the main process only; times and speeds leave by on_metrics alone.

    Raises:
        ConfigError: params and data don't allow this stage.
        CheckpointError: checkpoints can't be written, or don't belong to this run.
        TrainingDiverged: too many bad steps in a row.
        Terminated, KeyboardInterrupt: a signal asked to stop; the checkpoint is written.
    """
    environment = set_up(params.runtime)
    parallel = Parallel(environment.device.type, params.runtime.sharding)
    digest = run_hash(stage, params, data.content_hash, init, parallel.device, parallel.world)
    folder = Path(checkpoint_root) / f"stage-{stage}-{digest[:16]}"
    if parallel.is_main:
        check_space(folder, bytes_to_keep(params, stage, data.text_dim))
    network = start_network(stage, params, data, init)
    with StopRequest() as stop:
        run = _Run(stage, params, data, network, environment, parallel, stop)
        run.folder = CheckpointFolder(folder, digest, params.train.cadence.keep_checkpoints)
        run.on_metrics, run.on_samples = on_metrics, on_samples
        result = run.to_the_end()
        if stop.signum:
            run.raise_stop()
        return result


class _Run:
    """What `train` works on."""

    folder: CheckpointFolder
    on_metrics: OnMetrics
    on_samples: OnSamples

    def __init__(
        self,
        stage: int,
        params: Params,
        data: PreparedData,
        network: NestedUNet,
        environment: Environment,
        parallel: Parallel,
        stop: StopRequest,
    ):
        self.stage, self.params, self.data, self.parallel, self.stop = stage, params, data, parallel, stop
        self.section, self.cadence = params.train.stages[stage - 1], params.train.cadence
        self.schedule = schedule_of(params.process, self.section)
        self.batches = TrainingBatches(params, stage, data, self.schedule, parallel.world, parallel.rank)
        self.num_steps = self.batches.num_steps
        check_stage(params, stage, data, self.num_steps, parallel.world)
        self.validation = Validation(params, stage, data, self.schedule)
        self.engine = make_engine(params, stage, network, environment, parallel)
        self.history = History()
        self.clock = Clock()
        self.samples: Tensor | None = None
        self.stop_asked = False
        self.saved_at = -1  # step of the newest checkpoint
        self.bar: Progress | None = None

    @property
    def images(self) -> int:
        """Seen by the optimizer steps made so far."""
        return min(self.engine.step * self.batches.group_size, self.section.images)

    def to_the_end(self) -> Result:
        self._resume()
        if self.parallel.is_main:
            self.bar = Progress(self.section.images, f"stage-{self.stage}", initial=self.images)
        ahead = Ahead(self.batches.make)
        try:
            while True:
                with self.clock.paused():
                    self._between_steps()
                if self.engine.step == self.num_steps:
                    break
                self._advance(ahead)
        finally:
            ahead.close()
            if self.bar is not None:
                self.bar.close()
        return self._result()

    # between two steps

    def _between_steps(self) -> None:
        """Validation, then checkpoint: a run that resumes here validates if, and only if, that isn't done yet."""
        step, last = self.engine.step, self.engine.step == self.num_steps
        if (last or step > 0 and step % self.cadence.validate_ == 0) and not self.stop_asked:
            self._validate(last)
        if self.stop_asked:
            self._save(regular=False)
            self.raise_stop()
        if (last or step % self.cadence.checkpoint == 0) and step != self.saved_at:
            self._save(regular=True)

    def _validate(self, last: bool) -> None:
        step = self.engine.step
        if self.history.is_validated(step) and not last:
            return
        with self.engine.evaluating():
            if not self.history.is_validated(step):
                values = self.validation.loss(self.engine, stop=lambda: bool(self.stop.signum))
                if values is None:
                    self.stop_asked = True
                    return
                self.history.add_validation(step, self.images, values)
                self._report(values)
            self.samples = self.validation.samples(self.engine)
        if self.parallel.is_main:
            self.on_samples(step, self.samples)

    def raise_stop(self) -> None:
        signum = self.stop.signum or signal.SIGTERM  # another process may have been the one to be asked
        message = f"stage-{self.stage} stopped at step {self.engine.step} of {self.num_steps}, checkpoint written"
        raise Terminated(message) if signum == signal.SIGTERM else KeyboardInterrupt(message)

    # one step

    def _advance(self, ahead: Ahead[list[Batch]]) -> None:
        engine = self.engine
        while engine.guard.is_left_out(engine.draw):
            engine.guard.leave_out()
        step, draw, size = engine.step, engine.draw, self.batches.size_of(engine.step)
        following = (draw + 1, self.batches.size_of(step + 1)) if step + 1 < self.num_steps else None
        with self.clock.waiting():
            batches = ahead.take((draw, size), following)
        if self.params.model.dropout:
            torch.manual_seed(rng.torch_seed(self.params.seed, self.stage, draw, f"dropout/{self.parallel.rank}"))
        lr = learning_rate(step, self.section, self.num_steps)
        result = engine.train_step(batches, size, lr, stop=bool(self.stop.signum))
        self.stop_asked = result.stop
        if result.verdict is Verdict.APPLY:
            self._applied(result, lr, size)
        elif result.verdict is Verdict.ROLL_BACK:
            self._roll_back(draw, result)
        elif engine.guard.must_stop:
            self._diverged(batches, result)

    def _applied(self, result: StepResult, lr: float, size: int) -> None:
        self.history.interval.add(result)
        self.clock.images += size
        if self.engine.step % self.cadence.log == 0 or self.engine.step == self.num_steps:
            guard = self.engine.guard
            row = self.history.close_row(
                self.engine.step, self.images, lr=lr, skipped_steps=guard.skipped_steps, rollbacks=guard.rollbacks
            )
            self._report({**row, **self.clock.lap(), "peak_memory_mb": peak_memory_mb(self.parallel.device)})
        if self.bar is not None:
            self.bar.update(size, f"loss {self.engine.guard.mean_loss:.4f}")

    def _diverged(self, batches: list[Batch], result: StepResult) -> None:
        levels = [t for batch in batches for t in batch.t.tolist()]
        ids = [name for batch in batches for name in self.data.ids(batch.indices)]
        raise TrainingDiverged(
            f"stage-{self.stage}: "
            + self.engine.guard.diagnosis(self.engine.step, result.loss, result.grad_norm, levels, ids)
        )

    def _report(self, values: dict[str, float]) -> None:
        if self.parallel.is_main:
            self.on_metrics(self.engine.step, {k: v for k, v in values.items() if k != "step"})

    # checkpoints

    def _save(self, *, regular: bool) -> None:
        tensors = self.engine.tensors()
        if self.parallel.is_main:
            state = {**self.engine.state(), "history": self.history.state()}
            self.folder.save(self.engine.step, tensors, state, regular=regular)
        self.parallel.wait()  # who leaves now, stopped, takes the connection with it
        self.saved_at = self.engine.step

    def _resume(self) -> None:
        """From the newest checkpoint; without one the cadence writes one of step 0, and a roll-back can go there."""
        checkpoint = self._load(self.folder.newest() if self.parallel.is_main else None)
        if checkpoint is not None:
            self._say(f"resumed from {checkpoint['name']} at step {self.engine.step} of {self.num_steps}")

    def _load(self, checkpoint: Checkpoint | None) -> dict[str, Any] | None:
        """The main process's checkpoint, on all processes; its name and state, None when there is none."""
        content = None if checkpoint is None else {"name": str(checkpoint.path), "state": checkpoint.state}
        content = self.parallel.share(content)
        if content is not None:
            self.engine.load(None if checkpoint is None else checkpoint.tensors, content["state"])
            self.history.load(content["state"]["history"])
            self.saved_at = self.engine.step
        return content

    def _roll_back(self, draw: int, result: StepResult) -> None:
        self._say(
            f"loss {result.loss:.4g} at step {self.engine.step} is more than {self.engine.guard.spike_factor} times "
            f"its running mean {self.engine.guard.mean_loss:.4g}: back to the last regular checkpoint"
        )
        if self._load(self.folder.newest(regular_only=True) if self.parallel.is_main else None) is None:
            raise CheckpointError(f"{self.folder.folder}: no checkpoint to go back to")
        self.engine.guard.went_back(draw)

    def _say(self, message: str) -> None:
        if self.parallel.is_main:
            print(f"stage-{self.stage}: {message}", flush=True)

    # the end

    def _result(self) -> Result:
        tensors = self.engine.tensors()
        spec = network_config(self.params, self.stage, self.data.text_dim)
        raw = {name.removeprefix("network."): t for name, t in tensors.items() if name.startswith("network.")}
        averaged = raw | {name.removeprefix("ema."): t for name, t in tensors.items() if name.startswith("ema.")}
        networks = [network_from_config(spec).eval() for _ in range(2)]
        for network, state in zip(networks, (averaged, raw), strict=True):
            network.load_state_dict(state)
        if self.parallel.is_main:
            self.folder.keep_only_newest()
        config = {
            "network": spec,
            "process": {**self.schedule.settings(), "prediction": self.params.process.prediction},
            "text": self.params.text.model_dump(mode="json"),
            "resolution": self.section.resolution,
        }
        return Result(*networks, config, self._metrics(networks[0]), self.history, self.samples, self.parallel.is_main)

    def _metrics(self, averaged: NestedUNet) -> dict[str, float]:
        return {
            **{name: value for name, value in self.history.summary().items() if name != "step"},
            "steps": self.engine.step,
            "images": self.images,
            "parameters": sum(p.numel() for p in averaged.parameters()),
            **{f"shift_{name}": value for name, value in averaged.shift_report().items()},
        }
