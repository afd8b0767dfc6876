"""One optimizer step: accumulation, clipping, scaling, skipping, state (cases 7 to 10, 16)."""

import contextlib
import dataclasses
import math

import pytest
import torch

from shift_diffusion.process.schedules import schedule_of
from shift_diffusion.runtime import set_up
from shift_diffusion.training.batches import TrainingBatches
from shift_diffusion.training.checkpoint import CheckpointError
from shift_diffusion.training.engine import Engine, make_optimizer
from shift_diffusion.training.guard import Verdict
from shift_diffusion.training.objective import Objective
from shift_diffusion.training.parallel import Parallel, sync_batch_norm
from shift_diffusion.training.start import make_engine, start_network


def setup(params, data, stage=1, scaler=None):
    environment, parallel = set_up(params.runtime), Parallel("cpu")
    network = start_network(stage, params, data, None)
    engine = make_engine(params, stage, network, environment, parallel)
    engine.scaler = scaler
    schedule = schedule_of(params.process, params.train.stages[stage - 1])
    return engine, TrainingBatches(params, stage, data, schedule, 1, 0)


def steps(engine, batches, count, lr=1e-3):
    return [engine.train_step(batches.make(d, n := batches.size_of(d)), n, lr) for d in range(count)]


def weights(engine):
    return torch.cat([p.detach().flatten() for p in engine.network.parameters()])


def poisoned(batch, value=math.nan):
    eps = batch.eps.clone()
    eps[0, 0, 0, 0] = value
    return dataclasses.replace(batch, eps=eps)


@pytest.mark.parametrize(("batch_size", "accumulation"), [(16, 4), (8, 8), (32, 2)])
def test_accumulation_equals_the_big_batch(short, data, batch_size, accumulation):
    """1 x 64 against 4 x 16, with a last group of 32 images: 10 batches of 16 in groups of 4."""
    results = []
    for cut in ((64, 1), (batch_size, accumulation)):
        stage = {"images": 160, "batch_size": cut[0], "accumulation": cut[1], "warmup": 0}
        engine, batches = setup(short({"train": {"stage-1": stage}}), data)
        results.append((steps(engine, batches, batches.num_steps), weights(engine)))
    (one, big), (many, small) = results
    assert len(one) == len(many) == 3
    assert (big - small).abs().max() < 1e-5
    for a, b in zip(one, many, strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-4)


def test_gradients_are_empty_after_each_group(short, data):
    engine, batches = setup(short(), data)
    steps(engine, batches, 1)
    assert all(p.grad is None for p in engine.network.parameters())


def test_norm_is_that_before_clipping_and_the_step_obeys_the_limit(short, data):
    """Plain SGD shows the clipped gradient as the change of the weights."""
    engine, batches = setup(short({"optim": {"grad_clip": 0.01}}), data)
    engine.optimizer = torch.optim.SGD(engine.network.parameters(), lr=1.0)
    before = weights(engine)
    result = engine.train_step(batches.make(0, 8), 8, 1.0)
    assert result.grad_norm > 0.01
    assert (weights(engine) - before).norm() == pytest.approx(0.01, rel=1e-3)


def test_statistics_add_up(short, data):
    engine, batches = setup(short(), data)
    result = steps(engine, batches, 1)[0]
    assert sum(n for _, n in result.quartile_losses) == 8
    assert sum(s for s, _ in result.quartile_losses) / 8 == pytest.approx(result.loss, rel=1e-5)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_one_bad_pixel_skips_the_step_and_nothing_moves(short, data, value):
    engine, batches = setup(short(), data)
    steps(engine, batches, 2)
    before, average = weights(engine), engine.ema.averages["core.stem.weight"].clone()
    result = engine.train_step([poisoned(batches.make(2, 8)[0], value)], 8, 1e-3)
    assert result.verdict is Verdict.SKIP
    assert (engine.step, engine.ema.num_updates, engine.guard.skipped_steps, engine.draw) == (2, 2, 1, 3)
    assert torch.equal(weights(engine), before)
    assert torch.equal(engine.ema.averages["core.stem.weight"], average)
    assert engine.train_step(batches.make(3, 8), 8, 1e-3).verdict is Verdict.APPLY


def test_an_infinite_gradient_skips_the_step(short, data):
    engine, batches = setup(short(), data)
    handle = next(engine.network.parameters()).register_hook(lambda grad: grad * math.inf)
    before = weights(engine)
    result = engine.train_step(batches.make(0, 8), 8, 1e-3)
    handle.remove()
    assert math.isfinite(result.loss)
    assert not math.isfinite(result.grad_norm)
    assert result.verdict is Verdict.SKIP
    assert torch.equal(weights(engine), before)


def test_a_bad_loss_blames_its_own_quartile_only(short, data):
    engine, batches = setup(short(), data)
    batch = batches.make(0, 8)[0]
    result = engine.train_step([poisoned(batch)], 8, 1e-3)
    bad = [k for k, (total, _) in enumerate(result.quartile_losses) if not math.isfinite(total)]
    assert bad == [int(batch.quartile[0])]


# float16: the arithmetic needs an accelerator, its bookkeeping doesn't


def test_scaled_training_logs_true_norms_and_makes_the_same_steps(short, data):
    stage = {"train": {"stage-1": {"batch_size": 4, "accumulation": 2}}}
    plain, batches = setup(short(stage), data)
    scaled, _ = setup(short(stage), data, scaler=torch.amp.GradScaler("cpu", init_scale=2.0**10))
    for a, b in zip(steps(plain, batches, 3), steps(scaled, batches, 3), strict=True):
        assert a.grad_norm == pytest.approx(b.grad_norm, rel=1e-4)
    torch.testing.assert_close(weights(plain), weights(scaled), rtol=0, atol=1e-6)


def test_an_overflow_lowers_the_scale_and_moves_nothing_else(short, data):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    engine, batches = setup(short({"train": {"stage-1": {"batch_size": 4, "accumulation": 2}}}), data, scaler=scaler)
    steps(engine, batches, 2)
    scaler.update(2.0**127)  # the next scaled loss overflows
    before = weights(engine)
    result = engine.train_step(batches.make(2, 8), 8, 1e-3)
    assert result.verdict is Verdict.SKIP
    assert torch.equal(weights(engine), before)
    assert (engine.step, engine.ema.num_updates, engine.guard.skipped_steps) == (2, 2, 1)
    assert scaler.get_scale() == 2.0**126
    scaler.update(2.0**10)
    assert engine.train_step(batches.make(3, 8), 8, 1e-3).verdict is Verdict.APPLY
    assert engine.step == 3


def test_the_scale_is_part_of_the_state(short, data):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**7)
    engine, batches = setup(short(), data, scaler=scaler)
    steps(engine, batches, 1)
    other, _ = setup(short(), data, scaler=torch.amp.GradScaler("cpu"))
    other.load(engine.tensors(), engine.state())
    assert other.scaler.get_scale() == 2.0**7


# state


def test_a_loaded_engine_goes_on_to_the_bit(short, data):
    engine, batches = setup(short(), data)
    steps(engine, batches, 3)
    tensors = {name: tensor.clone() for name, tensor in engine.tensors().items()}
    state = engine.state()
    other, _ = setup(short({"seed": 5}), data)
    other.load(tensors, state)
    for each in (engine, other):
        for draw in range(3, 6):
            each.train_step(batches.make(draw, 8), 8, 1e-3)
    for name, tensor in engine.tensors().items():
        assert torch.equal(tensor, other.tensors()[name]), name


def test_a_state_that_does_not_fit_is_refused_by_name(short, data):
    engine, batches = setup(short(), data)
    steps(engine, batches, 1)
    tensors = engine.tensors()
    wider, _ = setup(short({"model": {"embedding_dim": 32}}), data)
    with pytest.raises(CheckpointError, match=r"is \(8,\d+, 3, 3\)|, the run needs"):
        wider.load(tensors, engine.state())
    missing = tensors.pop("network.core.stem.weight")
    tensors["network.module.core.stem.weight"] = missing
    with pytest.raises(CheckpointError, match="missing: network.core.stem.weight\nunexpected: network.module.core"):
        engine.load(tensors, engine.state())
    only_average = {name: tensor for name, tensor in engine.tensors().items() if name.startswith("ema.")}
    with pytest.raises(CheckpointError, match=r"missing: network\.core\.stem\.weight"):
        engine.load(only_average, engine.state())


def test_compiled_networks_keep_their_names(short, data):
    """What a compiled run has saved, a plain one loads, and the other way round."""
    compiled, _ = setup(short({"seed": 5, "runtime": {"compile": True}}), data)
    plain, _ = setup(short(), data)
    assert compiled.tensors().keys() == plain.tensors().keys()
    assert not torch.equal(weights(compiled), weights(plain))
    plain.load(compiled.tensors(), compiled.state())
    assert torch.equal(weights(compiled), weights(plain))


def test_a_perceptual_network_is_in_no_optimizer_and_no_checkpoint(short, data):
    """Case 10."""
    params = short({"train": {"stage-2": {"loss": {"perceptual": 0.1}}}})
    engine, batches = setup(params, data, stage=2)
    assert math.isfinite(steps(engine, batches, 1)[0].loss)
    in_optimizer = sum(p.numel() for group in engine.optimizer.param_groups for p in group["params"])
    assert in_optimizer == sum(p.numel() for p in engine.network.parameters())
    assert {name.split(".")[0] for name in engine.tensors()} == {"network", "ema", "optimizer"}


def test_no_perceptual_network_is_loaded_for_a_weight_of_zero(short, data, monkeypatch):
    """Case 10; one stage's weight doesn't load it for the others."""

    def forbidden(name):
        raise AssertionError(name)

    monkeypatch.setattr("shift_diffusion.training.start.load_perceptual", forbidden)
    params = short({"loss": {"perceptual_network": "vgg19"}, "train": {"stage-2": {"loss": {"gram": 0.1}}}})
    setup(params, data)
    with pytest.raises(AssertionError, match="vgg19"):
        setup(params, data, stage=2)


@pytest.mark.parametrize("style", ["flux", "qwen", "sdxl"])
@pytest.mark.parametrize(("probability", "equal"), [(1.0, True), (0.0, False)])
def test_what_is_dropped_teaches_nothing(short, data, style, probability, equal):
    """Case 9: the mask that was drawn is the one that is used, on the whole way from params to weights."""
    overlay, results = {"conditioning": {"style": style, "drop_probability": probability}}, []
    for sign in (1, -1):
        engine, batches = setup(short(overlay), data)
        for draw in range(3):
            batch = batches.make(draw, 8)[0]
            text = batch.text._replace(tokens=sign * batch.text.tokens, pooled=sign * batch.text.pooled)
            engine.train_step([dataclasses.replace(batch, text=text)], 8, 1e-3)
        results.append(weights(engine))
    assert torch.equal(*results) == equal


@pytest.mark.parametrize("name", ["muon", "adamw"])
def test_only_matrices_and_kernels_decay(short, data, name):
    params = short({"optim": {"name": name, "weight_decay": 0.1}})
    for group in make_optimizer(start_network(1, params, data, None), params.optim).param_groups:
        assert all((p.ndim >= 2) == (group["weight_decay"] == 0.1) for p in group["params"])


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_gradient_checkpointing_changes_no_gradient(short, data, dtype):
    grads = []
    for enabled in (False, True):
        engine, batches = setup(short({"runtime": {"gradient_checkpointing": enabled}}), data, stage=2)
        objective = engine._objective
        if dtype is not None:
            objective._autocast = lambda: torch.autocast("cpu", dtype)
        objective(batches.make(0, 8)[0], 1 / 8)[0].backward()
        grads.append({name: p.grad for name, p in engine.network.named_parameters()})
    off, on = grads
    assert all(grad is not None for grad in on.values())
    for name, grad in off.items():
        torch.testing.assert_close(on[name], grad, rtol=1e-5, atol=1e-6)


def test_the_penalty_counts_once_a_group(short, data):
    stage = {"shift": {"init_scale": 0.5, "penalty": 10.0}}
    norms = []
    for cut in ((8, 1), (2, 4)):
        overlay = {**stage, "train": {"stage-1": {"batch_size": cut[0], "accumulation": cut[1]}}}
        engine, batches = setup(short(overlay), data)
        norms.append(steps(engine, batches, 1)[0].grad_norm)
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)


class _WithBatchNorm(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Conv2d(3, 3, 1), torch.nn.BatchNorm2d(3))


def test_batch_norm_is_synchronized_where_there_are_many_processes():
    from shift_diffusion.config import ConfigError

    network = _WithBatchNorm()
    assert sync_batch_norm(network, 1, torch.device("cuda")) is network
    assert isinstance(sync_batch_norm(network, 2, torch.device("cuda"))[1], torch.nn.SyncBatchNorm)
    with pytest.raises(ConfigError, match="BatchNorm"):
        sync_batch_norm(_WithBatchNorm(), 2, torch.device("cpu"))


def test_objective_and_engine_take_any_network(short, data):
    """A user's own network needs forward(x_t, log_snr, text, drop) and, with a penalty, shift_penalty()."""
    from shift_diffusion.process.losses import DenoisingLoss

    class Own(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = torch.nn.Conv2d(3, 3, 3, padding=1)

        def forward(self, x_t, log_snr, text, drop):
            return self.conv(x_t)

    params = short()
    _, batches = setup(params, data)
    objective = Objective(Own(), DenoisingLoss(params.loss, "velocity"), 0.0, contextlib.nullcontext)
    engine = Engine(objective, params.optim, Parallel("cpu"))
    assert steps(engine, batches, 2)[-1].verdict is Verdict.APPLY
