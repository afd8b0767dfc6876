"""A stage as a whole: the same bytes after any break, true reports, clear endings (cases 7, 11 to 17)."""

import dataclasses
import json
import math
import os
import random
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from shift_diffusion.config import ConfigError
from shift_diffusion.models.saving import load_network
from shift_diffusion.stage import Terminated
from shift_diffusion.training import guard, loop
from shift_diffusion.training.batches import TrainingBatches
from shift_diffusion.training.checkpoint import CheckpointError
from shift_diffusion.training.engine import Engine
from shift_diffusion.training.guard import TrainingDiverged
from shift_diffusion.training.identity import weights_hash
from shift_diffusion.training.interrupt import StopRequest
from shift_diffusion.training.loop import train
from shift_diffusion.training.lr import learning_rate
from shift_diffusion.training.outputs import write_outputs
from shift_diffusion.training.start import bytes_to_keep
from tests.conftest import ROOT, tiny_params
from tests.training.conftest import SHORT


def outputs(result, folder: Path) -> dict[str, bytes]:
    """Every file a stage writes, by relative path."""
    write_outputs(result, folder / "models" / "stage-1", folder / "reports" / "stage-1")
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@dataclasses.dataclass
class Unbroken:
    """A run that nobody disturbed. files: what it wrote; rows: what it reported, by step; pictures: at validations."""

    folder: Path
    files: dict[str, bytes]
    result: loop.Result
    rows: dict[int, dict[str, float]]
    pictures: list[tuple[int, torch.Tensor]]


@pytest.fixture(scope="module")
def unbroken(data, tmp_path_factory) -> Unbroken:
    folder, rows, pictures = tmp_path_factory.mktemp("unbroken"), {}, []
    result = train(
        1,
        tiny_params(SHORT),
        data,
        folder / "checkpoints",
        on_metrics=lambda step, values: rows.setdefault(step, {}).update(values),
        on_samples=lambda step, images: pictures.append((step, images)),
    )
    return Unbroken(folder, outputs(result, folder / "out"), result, rows, pictures)


class Killed(BaseException):
    """Ends a run without a checkpoint, as kill -9 does for all that the next run can see."""


def stop_at(step: int, how):
    """An on_metrics that ends the run at the first row at or after `step`."""

    def on_metrics(now, values):
        if now >= step and "images_per_s" in values:
            how()

    return on_metrics


def kill():
    raise Killed


def send(signum):
    return lambda: os.kill(os.getpid(), signum)


def test_files_of_a_stage(unbroken):
    assert sorted(unbroken.files) == [
        *(f"models/stage-1/{name}" for name in ("config.json", "model.safetensors", "raw.safetensors")),
        *(f"reports/stage-1/{name}" for name in ("curves.png", "history.csv", "metrics.json", "samples.png")),
    ]


def test_a_killed_run_ends_in_the_same_bytes(short, data, tmp_path, capsys, unbroken):
    with pytest.raises(Killed):
        train(1, short(), data, tmp_path / "checkpoints", on_metrics=stop_at(16, kill))
    capsys.readouterr()
    result = train(1, short(), data, tmp_path / "checkpoints")
    out = capsys.readouterr().out
    assert f"stage-1: resumed from {tmp_path}" in out
    assert "step-00000015 at step 15 of 20" in out
    assert outputs(result, tmp_path / "out") == unbroken.files


@pytest.mark.parametrize(
    ("signum", "error"),
    [(signal.SIGTERM, Terminated), pytest.param(signal.SIGINT, KeyboardInterrupt, marks=pytest.mark.slow)],
)
def test_a_signal_ends_the_run_after_the_step_with_a_checkpoint(short, data, tmp_path, unbroken, signum, error):
    before = signal.getsignal(signum)
    with pytest.raises(error, match="stopped at step 9 of 20, checkpoint written"):
        train(1, short(), data, tmp_path / "checkpoints", on_metrics=stop_at(8, send(signum)))
    assert signal.getsignal(signum) is before
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert sorted(p.name for p in folder.iterdir()) == ["step-00000000", "step-00000005", "step-00000009-interrupted"]
    assert outputs(train(1, short(), data, tmp_path / "checkpoints"), tmp_path / "out") == unbroken.files


def test_a_signal_during_validation_gives_it_up_and_the_next_run_makes_up_for_it(short, data, tmp_path, unbroken):
    """The row of step 12 is the last before the validation at 20; its signal is seen by the step after it."""
    sent = []

    def on_metrics(step, values):
        if step == 20 and "images_per_s" in values and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGTERM))

    with pytest.raises(Terminated, match="step 20 of 20"):
        train(1, short(), data, tmp_path / "checkpoints", on_metrics=on_metrics)
    validated = []
    result = train(1, short(), data, tmp_path / "checkpoints", on_metrics=lambda s, v: validated.append(s))
    assert validated == [20]
    assert outputs(result, tmp_path / "out") == unbroken.files


def test_a_second_interrupt_ends_at_once(monkeypatch):
    with StopRequest() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signum == signal.SIGINT
        os.kill(os.getpid(), signal.SIGINT)  # passed on by a launcher
        monkeypatch.setattr(stop, "_asked_at", stop._asked_at - 2)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_outside_the_main_thread_signals_stay_as_they_are(short, data, tmp_path):
    results = []
    params = short({"train": {"stage-1": {"images": 16, "warmup": 0}}})
    thread = threading.Thread(target=lambda: results.append(train(1, params, data, tmp_path)))
    thread.start()
    thread.join()
    assert results[0].metrics["steps"] == 2


def test_a_finished_run_is_not_repeated(short, data, tmp_path, unbroken):
    rows = []
    again = train(1, short(), data, unbroken.folder / "checkpoints", on_metrics=lambda s, v: rows.append(s))
    assert rows == []
    assert outputs(again, tmp_path / "out") == unbroken.files


def test_a_broken_checkpoint_costs_only_the_steps_since_the_one_before(short, data, tmp_path, unbroken, caplog):
    with pytest.raises(Killed):
        train(1, short(), data, tmp_path / "checkpoints", on_metrics=stop_at(12, kill))
    (folder,) = (tmp_path / "checkpoints").iterdir()
    newest = folder / "step-00000010" / "state.safetensors"
    newest.write_bytes(newest.read_bytes()[:1000])
    assert outputs(train(1, short(), data, tmp_path / "checkpoints"), tmp_path / "out") == unbroken.files
    assert "set aside" in caplog.text


def test_other_parameters_never_go_on_from_these_checkpoints(short, data, tmp_path, capsys):
    """Cases 16 and 28; what makes another run: test_identity.py."""
    for seed in (0, 1):
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with pytest.raises(Killed):
            train(1, short({"seed": seed}), data, tmp_path, on_metrics=stop_at(12 if seed == 0 else 8, kill))
    assert "resumed" not in capsys.readouterr().out
    assert len(list(tmp_path.iterdir())) == 2
    assert len(before) > 2
    assert all(path.read_bytes() == content for path, content in before.items())  # case 15: nor removed by rotation


def watch_steps(monkeypatch) -> list[tuple]:
    """What every optimizer step is given: its number, learning rate, sample ids, noise levels, noise, dropped ones."""
    seen, step = [], Engine.train_step

    def train_step(self, batches, size, lr, stop=False):
        parts = [(b.indices.tolist(), b.t.tolist(), b.eps.flatten(1)[:, :4].tolist(), b.drop.tolist()) for b in batches]
        seen.append((self.step, lr, parts))
        return step(self, batches, size, lr, stop=stop)

    monkeypatch.setattr(Engine, "train_step", train_step)
    return seen


def test_a_resumed_second_stage_meets_what_the_unbroken_one_met(short, data, tmp_path, monkeypatch, unbroken):
    """Case 13: stopped in the middle of the second epoch (5 steps each), resumed with other random states."""
    params = short({"train": {"stage-2": {"images": 96}, "cadence": {"log": 1}}})
    seen, init = watch_steps(monkeypatch), unbroken.result.averaged
    whole = outputs(train(2, params, data, tmp_path / "a", init), tmp_path / "out-a")
    expected = seen[:]
    seen.clear()
    with pytest.raises(Terminated, match="stage-2 stopped at step 7 of 12"):
        train(2, params, data, tmp_path / "b", init, on_metrics=stop_at(6, send(signal.SIGTERM)))
    for disturb in (random.seed, np.random.seed, torch.manual_seed):
        disturb(99)
    assert outputs(train(2, params, data, tmp_path / "b", init), tmp_path / "out-b") == whole
    assert [step for step, *_ in expected] == list(range(12))
    assert seen == expected


LOADER = """
import json, sys
from pathlib import Path
from safetensors.torch import load_file
from shift_diffusion.models.saving import load_network
from shift_diffusion.training.checkpoint import CheckpointFolder
from shift_diffusion.training.identity import weights_hash

checkpoints, model = map(Path, sys.argv[1:])
state = json.loads(next(checkpoints.glob("step-*/state.json")).read_text())
newest = CheckpointFolder(checkpoints, state["run_hash"], 1).newest()
networks = [load_network(model, name)[0] for name in ("model.safetensors", "raw.safetensors")]
print(json.dumps([newest.step, newest.state["history"]["rows"][-1], *map(weights_hash, networks)]))
"""


def test_every_kind_of_file_loads_in_a_new_process(unbroken):
    """Case 14: the newest checkpoint with an evaluation in it, the stage's end, averaged and not."""
    (checkpoints,) = (unbroken.folder / "checkpoints").iterdir()
    done = subprocess.run(
        [sys.executable, "-c", LOADER, checkpoints, unbroken.folder / "out" / "models" / "stage-1"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    step, row, *hashes = json.loads(done.stdout)
    assert step == 20
    assert row["validation_loss"] == unbroken.rows[20]["validation_loss"]
    assert hashes == [weights_hash(unbroken.result.averaged), weights_hash(unbroken.result.raw)]


def test_a_stage_without_the_one_before_is_an_error_not_a_fresh_start(data, tmp_path, monkeypatch):
    """Case 16."""
    from stages.train import main

    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "prepared").symlink_to(data.folder)
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tiny_params(SHORT).model_dump(mode="json", by_alias=True)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["train", "--stage", "2"])
    with pytest.raises(ConfigError, match="models/stage-1/config.json"):
        main()


def test_a_save_that_fails_ends_the_command_with_a_message_and_an_exit_code(data, tmp_path, unbroken):
    """Case 17: no file may be as large as a later checkpoint; the first one, without moments, is smaller."""
    (later,) = unbroken.folder.glob("checkpoints/*/step-*/state.safetensors")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (later.stat().st_size - 1, hard))

    done = subprocess.run(
        [sys.executable, "-m", "tests.training.worker", data.folder, tmp_path, "{}"],
        cwd=ROOT, preexec_fn=limit, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    for part in ("step-00000005", "can't write the checkpoint", f"{tmp_path}", " bytes"):
        assert part in done.stderr.splitlines()[-1]
    (folder,) = (tmp_path / "checkpoints").iterdir()
    assert [path.name for path in folder.iterdir()] == ["step-00000000"]


def test_the_room_that_is_asked_for_is_the_room_that_is_taken(short, data, unbroken):
    """Case 17: before the first step; of stage 1's share."""
    params = short()
    asked = bytes_to_keep(params, 1, data.text_dim) - bytes_to_keep(params, 2, data.text_dim)
    checkpoint = sum(path.stat().st_size for path in unbroken.folder.glob("checkpoints/*/step-*/*"))
    models = sum(path.stat().st_size for path in unbroken.folder.glob("out/models/stage-1/*.safetensors"))
    taken = checkpoint * (params.train.cadence.keep_checkpoints + 2) + models
    assert 0.6 < taken / asked < 1.1  # of so small a network the names of the weights take up some, too


def test_stages_grow_from_one_another(short, data, tmp_path):
    params, init = short({"train": {f"stage-{k}": {"images": 40} for k in (1, 2)}}), None
    for stage in (1, 2):
        result = train(stage, params, data, tmp_path / "checkpoints", init)
        write_outputs(result, tmp_path / "model", tmp_path / "report")
        init, config = load_network(tmp_path / "model")
        assert config["resolution"] == params.train.stages[stage - 1].resolution
    assert result.samples.shape == (12, 3, 16, 16)
    assert result.metrics["parameters"] == sum(p.numel() for p in init.parameters())


def test_metrics_say_how_the_run_went(unbroken):
    assert sorted(unbroken.rows) == [4, 8, 10, 12, 16, 20]
    row, metrics = unbroken.rows[20], unbroken.result.metrics
    for name in ("loss", "loss_q1", "loss_q4", "lr", "grad_norm", "images", "images_per_s", "data_wait_share"):
        assert math.isfinite(row[name]), name
    assert row["peak_memory_mb"] > 10
    assert math.isfinite(row["validation_loss"])
    assert [step for step, _ in unbroken.pictures] == [10, 20]
    assert unbroken.pictures[0][1].dtype == torch.uint8
    expected = ("loss", "validation_loss", "steps", "images", "skipped_steps", "rollbacks", "parameters", "grad_norm")
    assert set(expected) < set(metrics)
    assert any(name.startswith("shift_") for name in metrics)
    assert (metrics["images"], metrics["steps"]) == (160, 20)
    assert not any("per_s" in name or "peak" in name for row in unbroken.result.history.rows for name in row)


def test_validation_noise_is_fixed(short, data, tmp_path):
    """With a learning rate of nearly nothing the validation loss stays put, whatever was trained on."""
    params = short({"train": {"cadence": {"validate": 2}, "stage-1": {"lr": 1e-12, "images": 32}}})
    losses = train(1, params, data, tmp_path).history.series("validation_loss")[1]
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def poison(monkeypatch, draws, change):
    """Changes the noise of the batches of some draws."""
    make = TrainingBatches.make

    def made(self, draw, size):
        batches = make(self, draw, size)
        return [dataclasses.replace(b, eps=change(b.eps)) for b in batches] if draw in draws else batches

    monkeypatch.setattr(TrainingBatches, "make", made)


def one_nan(eps):
    eps = eps.clone()
    eps[0, 0, 0, 0] = math.nan
    return eps


def test_one_bad_batch_costs_one_draw(short, data, tmp_path, monkeypatch):
    poison(monkeypatch, {7}, one_nan)
    result = train(1, short(), data, tmp_path)
    assert (result.metrics["steps"], result.metrics["skipped_steps"], result.metrics["images"]) == (20, 1, 160)
    assert all(torch.isfinite(p).all() for p in result.averaged.parameters())


def test_learning_rates_survive_a_break_and_a_skipped_step(short, data, tmp_path, monkeypatch):
    """Case 11."""
    poison(monkeypatch, {7}, one_nan)
    params = short({"train": {"cadence": {"log": 1}}})
    with pytest.raises(Killed):
        train(1, params, data, tmp_path, on_metrics=stop_at(9, kill))
    rates = train(1, params, data, tmp_path).history.series("lr")[1]
    assert rates == [learning_rate(step, params.train.stage_1) for step in range(20)]


def test_bad_steps_in_a_row_stop_the_run_with_a_diagnosis(short, data, tmp_path, monkeypatch):
    poison(monkeypatch, range(7, 100), one_nan)
    with pytest.raises(TrainingDiverged) as caught:
        train(1, short({"optim": {"max_bad_steps": 3}}), data, tmp_path)
    message = str(caught.value)
    for part in ("stage-1", "3 bad steps in a row at step 7", "Noise levels", "blob-", ".png"):
        assert part in message
    (folder,) = tmp_path.iterdir()
    from safetensors.torch import load_file

    for path in folder.glob("step-*/state.safetensors"):
        assert all(torch.isfinite(tensor).all() for tensor in load_file(path).values())


SPIKE = {  # the noise is in the target of the velocity, so that much of it is a large loss
    "process": {"prediction": "velocity"},
    "loss": {"velocity_floor": 0.0},
    "train": {"stage-1": {"images": 240, "warmup": 3}, "cadence": {"checkpoint": 10, "validate": 100}},
}


@pytest.mark.parametrize("broken", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_spike_goes_back_once_and_leaves_it_out(short, data, tmp_path, monkeypatch, capsys, broken):
    monkeypatch.setattr(guard, "WARM_UP", 12)
    poison(monkeypatch, {25}, lambda eps: eps * 30)
    params = short(SPIKE)
    whole = train(1, params, data, tmp_path / "a")
    assert "back to the last regular checkpoint" in capsys.readouterr().out
    assert whole.metrics["rollbacks"] == 1
    assert whole.metrics["skipped_steps"] == 25 - 20 + 1  # of those left out, 15 to 19 lie before the checkpoint
    assert whole.metrics["steps"] == 30
    if broken:
        with pytest.raises(Terminated):  # its checkpoint at step 25 is newer than the regular one of 20
            train(1, params, data, tmp_path / "b", on_metrics=stop_at(24, send(signal.SIGTERM)))
        again = train(1, params, data, tmp_path / "b")
        assert outputs(again, tmp_path / "out-b") == outputs(whole, tmp_path / "out-a")


def test_no_space_is_said_before_the_first_step(short, data, tmp_path, monkeypatch):
    monkeypatch.setattr("shift_diffusion.training.checkpoint.free_bytes", lambda folder: 1000)
    with pytest.raises(CheckpointError, match="make room first"):
        train(1, short(), data, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_split_is_refused(short, tmp_path):
    from tests.training.prepared import write_prepared

    empty = write_prepared(tmp_path, num_train=8, num_validation=0)
    with pytest.raises(ConfigError, match="no image in the split 'validation'"):
        train(1, short(), empty, tmp_path / "checkpoints")


def test_dropout_is_a_function_of_the_draw_too(short, data, tmp_path):
    params = short({"model": {"dropout": 0.3}, "train": {"stage-1": {"images": 80}}})
    whole = outputs(train(1, params, data, tmp_path / "a"), tmp_path / "out-a")
    with pytest.raises(Killed):
        train(1, params, data, tmp_path / "b", on_metrics=stop_at(8, kill))
    torch.manual_seed(1234)
    assert outputs(train(1, params, data, tmp_path / "b"), tmp_path / "out-b") == whole


def test_the_caller_s_random_state_is_left_alone(short, data):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    loop.start_network(1, short(), data, None)
    assert torch.equal(torch.rand(1), expected)
