"""Rules about a training stage's curves. Each looks at one symptom and says nothing when it isn't there."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from statistics import median

from shift_diffusion.config import Params, Stage
from shift_diffusion.evaluation.finding import Finding, StageRecord

EXPLODES = 2.0  # last losses over the lowest ones before them
PEAK = 5.0  # highest loss over the first one
GRADIENT_GROWS = 10.0  # last gradient norms over the usual ones
WRONG_RANGE = 20.0  # lowest loss; pictures in [-1, 1] start below 4, whatever is predicted
FLAT = 0.05  # relative fall of the loss that counts as one
STAYS_HIGH = 0.6  # of the loss of a network that has learned nothing, which is about 1
LEARNED_NOTHING = 0.95  # the loss of predicting zero is 1 for eps, and more for velocity and v
EMA_LAGS = 1.5  # loss of the averaged weights over that of the live ones
OVERFITS = 1.15  # last validation loss over its lowest
AT_BOUND = 0.95  # of the reach
MIN_ROWS = 5  # shorter curves tell nothing
NOISY_END = 0.25  # spread of validation losses over their mean


def training_findings(number: int, record: StageRecord, params: Params | None) -> Iterator[Finding]:
    """All findings about stage `number`."""
    key = f"train.stage-{number}"
    section = params.train.stages[number - 1] if params else None
    rules = (not_finite, explodes, gradient_explodes, wrong_range, flat, ema_lags, overfits, offsets_at_bound, memory)
    for rule in rules:
        yield from rule(key, record, section, params)


def _now(value: object) -> str:
    return f" (now {value:g})" if isinstance(value, (int, float)) else ""


def _lower_lr(key: str, section: Stage | None, factor: float = 0.3) -> str:
    if section is None:
        return f"{key}.lr: a third of what it is"
    return f"{key}.lr: {section.lr * factor:.2g}{_now(section.lr)}"


def _longer_warmup(key: str, section: Stage | None) -> str:
    if section is None:
        return f"{key}.warmup: longer"
    return f"{key}.warmup: {max(2 * section.warmup, 100)}{_now(section.warmup)}"


def _ends(values: Sequence[float]) -> tuple[float, float]:
    """Medians of the first and the last tenth, of three values at least: one batch alone says little."""
    size = max(len(values) // 10, 3)
    return median(values[:size]), median(values[-size:])


def not_finite(key: str, record: StageRecord, section: Stage | None, params: Params | None) -> Iterator[Finding]:
    skipped = int(record.metrics.get("skipped_steps", max(record.series("skipped_steps"), default=0)))
    holes = [loss for loss in record.series("loss") if not math.isfinite(loss)]
    if skipped or holes:
        evidence = f"{key}: {skipped} steps left out for a loss or gradient that wasn't finite or spiked"
        evidence += f"; {len(holes)} logged losses are NaN or infinite" if holes else ""
        change = f"{_lower_lr(key, section)}; {_longer_warmup(key, section)}; runtime.precision: float32"
        yield Finding("loss is NaN or infinite", evidence, change)


def explodes(key: str, record: StageRecord, section: Stage | None, params: Params | None) -> Iterator[Finding]:
    losses = [loss for loss in record.series("loss") if math.isfinite(loss)]
    rollbacks = int(record.metrics.get("rollbacks", max(record.series("rollbacks"), default=0)))
    if len(losses) >= MIN_ROWS:
        lowest, last = min(losses), _ends(losses)[1]
        peak, first = max(losses), losses[0]
        if peak > PEAK * first or (last > EXPLODES * lowest and last > first / EXPLODES):
            evidence = (
                f"{key}: loss {first:.3g} at the start, between {lowest:.3g} and {peak:.3g}, {last:.3g} at the end"
            )
            yield Finding("loss explodes", evidence, f"{_lower_lr(key, section, 0.1)}; {_longer_warmup(key, section)}")
            return
    if rollbacks:
        evidence = f"{key}: the loss spiked, training went back to a checkpoint ({rollbacks} time)"
        yield Finding("loss explodes", evidence, f"{_lower_lr(key, section)}; {_longer_warmup(key, section)}")


def gradient_explodes(key: str, record: StageRecord, section: Stage | None, params: Params | None) -> Iterator[Finding]:
    norms = record.series("grad_norm")
    finite = [norm for norm in norms if math.isfinite(norm)]
    if len(finite) < MIN_ROWS:
        return
    usual, last = median(finite), _ends(finite)[1]
    lowest_half = median(sorted(finite)[: len(finite) // 2])
    if max(last, usual) > GRADIENT_GROWS * lowest_half or len(finite) < len(norms):
        evidence = f"{key}: gradient norm {last:.3g} at the end, {lowest_half:.3g} in its calm half"
        clip = f"; optim.grad_clip: {params.optim.grad_clip / 2:g}{_now(params.optim.grad_clip)}" if params else ""
        yield Finding("gradient norm explodes", evidence, f"{_lower_lr(key, section)}{clip}")


def wrong_range(key: str, record: StageRecord, section: Stage | None, params: Params | None) -> Iterator[Finding]:
    losses = record.series("loss")
    if losses and min(losses) > WRONG_RANGE:  # a rate that is too high leaves this height sooner or later
        evidence = (
            f"{key}: loss {losses[0]:.3g} at first, never below {min(losses):.3g}; pictures in [-1, 1] give about 1"
        )
        change = "data: pictures must enter in [-1, 1] (data.images.to_float), not in [0, 255]; check data.source"
        yield Finding("range of the images is wrong", evidence, change)


def flat(key: str, record: StageRecord, section: Stage | None, params: Params | None) -> Iterator[Finding]:
    """A grown network starts low, so a flat curve is a fault only where the loss is still high."""
    losses = [loss for loss in record.series("loss") if math.isfinite(loss)]
    if len(losses) < MIN_ROWS:
        return
    first, last = _ends(losses)
    stands_still = last > (1 - FLAT) * first and last > STAYS_HIGH
    if (stands_still or last > LEARNED_NOTHING) and min(losses) < WRONG_RANGE:
        evidence = f"{key}: loss {first:.3g} at the start, {last:.3g} at the end"
        rate = f"{key}.lr: {section.lr * 10:.2g}{_now(section.lr)}" if section and section.lr < 1e-4 else ""
        change = rate or f"{_lower_lr(key, section)}; {_longer_warmup(key, section)}"
        yield Finding("loss is flat", evidence, f"{change}; check the range of the images")


def ema_lags(key: str, record: StageRecord, section: Stage | None, params: Params | None) -> Iterator[Finding]:
    losses, validation = record.series("loss"), record.series("validation_loss")
    if len(losses) < MIN_ROWS or not validation:
        return
    train, averaged = _ends(losses)[1], validation[-1]
    still_falling = averaged <= 1.02 * min(validation)
    if averaged > EMA_LAGS * train and still_falling:
        evidence = (
            f"{key}: held-out loss of the averaged weights {averaged:.3g}, training loss of the live ones {train:.3g}"
        )
        decay = params.optim.ema_decay if params else None
        change = (
            f"optim.ema_decay: {max(0.0, 1 - 4 * (1 - decay)):g}{_now(decay)}" if decay else "optim.ema_decay: lower"
        )
        yield Finding("averaged weights (EMA) lag behind", evidence, f"{change}, or more {key}.images")


def overfits(key: str, record: StageRecord, section: Stage | None, params: Params | None) -> Iterator[Finding]:
    losses, validation = record.series("loss"), record.series("validation_loss")
    if len(losses) < MIN_ROWS or len(validation) < 2:
        return
    train, now, best = _ends(losses)[1], validation[-1], min(validation)
    if now > OVERFITS * best and train < now:
        evidence = f"{key}: held-out loss {now:.3g}, was {best:.3g}; training loss {train:.3g}"
        change = f"more pictures (data.num_images), {key}.augment.flip: true, or fewer {key}.images"
        yield Finding("learns the training pictures by heart", evidence, change)


def offsets_at_bound(key: str, record: StageRecord, section: Stage | None, params: Params | None) -> Iterator[Finding]:
    offsets = {name.removeprefix("shift_"): v for name, v in record.metrics.items() if name.startswith("shift_")}
    bound = {level: value for level, value in offsets.items() if value >= AT_BOUND}
    if bound:
        evidence = f"{key}: largest offset over its reach: " + ", ".join(f"{k} {v:.2f}" for k, v in bound.items())
        if params is None:
            change = "shift.penalty: ten times what it is; shift.init_scale: 0"
        else:
            penalty = max(10 * params.shift.penalty, 1e-3)
            change = f"shift.penalty: {penalty:g}{_now(params.shift.penalty)}; shift.init_scale: 0"
        yield Finding("structure is distorted: shift offsets at their bound", evidence, change)


OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory", "memoryerror", "outofmemory")


def memory(key: str, record: StageRecord, section: Stage | None, params: Params | None) -> Iterator[Finding]:
    if any(sign in record.error.lower() for sign in OUT_OF_MEMORY):
        yield out_of_memory(key, record.error, section)


def out_of_memory(key: str, error: str, section: Stage | None = None) -> Finding:
    """Also for the moment it happens: `error` is the exception's text."""
    line = next((line for line in error.splitlines() if any(s in line.lower() for s in OUT_OF_MEMORY)), error.strip())
    halved = f"{key}.batch_size: half of it with twice the {key}.accumulation"
    if section is not None and section.batch_size > 1:
        halved = f"{key}.batch_size: {section.batch_size // 2}, {key}.accumulation: {2 * section.accumulation}"
    change = f"{halved} (same steps); runtime.gradient_checkpointing: true; runtime.precision: bfloat16"
    return Finding("out of memory", f"{key}: {line[:200]}", change)
