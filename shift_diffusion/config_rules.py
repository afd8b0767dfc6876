"""The rules between keys and sections of params.yaml: a breach is one line with key, value and what is allowed."""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from shift_diffusion.config import Loss, Params, Stage


def cross_field_problems(params: Params) -> list[str]:
    """The rules between keys and sections, one line per broken rule."""
    return [
        *_stage_problems(params),
        *_model_problems(params),
        *_process_problems(params),
        *_data_problems(params),
        *_optim_problems(params),
        *_evaluation_problems(params),
    ]


def _stage_problems(params: Params) -> list[str]:
    problems, stages = [], params.train.stages
    for number, (before, after) in enumerate(zip(stages, stages[1:], strict=False), start=2):
        if after.resolution != 2 * before.resolution:
            problems.append(
                f"train.stage-{number}.resolution: {after.resolution} must be twice stage-{number - 1}'s "
                f"{before.resolution}: each stage grows the network by one level"
            )
    halvings = 2 ** (len(params.model.widths) - 1)
    if stages[0].resolution % halvings:
        problems.append(
            f"train.stage-1.resolution: {stages[0].resolution} is not divisible by {halvings} "
            f"(model.widths has {len(params.model.widths)} levels, each halves the resolution)"
        )
    for number, stage in enumerate(stages, start=1):
        key = f"train.stage-{number}"
        if stage.warmup >= stage.steps:
            problems.append(f"{key}.warmup: {stage.warmup} steps, but the stage has only {stage.steps}; must be less")
        try:
            params.loss_of(stage)
        except ValidationError as error:
            problems += [
                f"{key}.loss.{'.'.join(map(str, e['loc']))}: {e['input']!r} is not allowed: {e['msg']}"
                + (f"; allowed: {', '.join(Loss.model_fields)}" if e["type"] == "extra_forbidden" else "")
                for e in error.errors()
            ]
            continue
        problems += _loss_problems(key, params, stage)
    return problems


def _loss_problems(key: str, params: Params, stage: Stage) -> list[str]:
    loss, problems = params.loss_of(stage), []
    if not any((loss.mse, loss.l1, loss.huber, loss.cross_entropy)):
        problems.append(f"{key}.loss: at least one of mse, l1, huber, cross_entropy must be above 0")
    if bool(loss.cross_entropy) != bool(params.loss.cross_entropy):
        problems.append(f"{key}.loss.cross_entropy: on or off for all stages alike: it changes the network's output")
    if loss.min_snr_gamma and loss.velocity_floor:
        problems.append(f"{key}.loss.velocity_floor: {loss.velocity_floor} with min_snr_gamma; one of them must be 0")
    if (loss.perceptual or loss.gram) and stage.resolution < 16:
        problems.append(
            f"{key}.loss.perceptual/gram: needs at least 16 pixels, the stage has {stage.resolution}; set it to 0 here"
        )
    return problems


def _model_problems(params: Params) -> list[str]:
    model, problems = params.model, []
    if len(model.attention) != len(model.widths):
        problems.append(f"model.attention: {len(model.attention)} values for {len(model.widths)} widths; give one each")
    if len(model.outer) != 2:
        problems.append(f"model.outer: {len(model.outer)} levels; stage-2 and stage-3 add one each, so 2")
    for index, width in enumerate([*model.widths, *(level.width for level in model.outer)]):
        where = (
            f"model.widths[{index}]" if index < len(model.widths) else f"model.outer[{index - len(model.widths)}].width"
        )
        if width % model.norm_groups:
            problems.append(f"{where}: {width} is not divisible by model.norm_groups {model.norm_groups}")
        if (
            index < len(model.widths)
            and index < len(model.attention)
            and model.attention[index]
            and width % model.head_dim
        ):
            problems.append(f"{where}: {width} has attention but is not divisible by model.head_dim {model.head_dim}")
    levels = len(model.widths) + len(model.outer)
    if len(params.shift.reach) != levels:
        problems.append(
            f"shift.reach: {len(params.shift.reach)} values for {levels} levels (coarsest first); give one each"
        )
    if model.embedding_dim % 2:
        problems.append(f"model.embedding_dim: {model.embedding_dim} must be even")
    return problems


def _process_problems(params: Params) -> list[str]:
    process, problems = params.process, []
    flow = process.family == "flow"
    if flow and process.prediction in ("eps", "v"):
        problems.append(f"process.prediction: '{process.prediction}' with schedule flow; allowed: velocity, x0")
    if not flow and process.prediction == "velocity":
        problems.append(f"process.prediction: 'velocity' with schedule {process.schedule}; allowed: eps, x0, v")
    if process.zero_terminal_snr and (flow or process.prediction == "eps"):
        problems.append("process.zero_terminal_snr: only for beta schedules with prediction v or x0")
    if params.loss.cross_entropy and process.prediction != "x0":
        problems.append(f"process.prediction: '{process.prediction}' with loss.cross_entropy; allowed: x0")
    if not flow and process.num_train_timesteps < 20:
        problems.append(f"process.num_train_timesteps: {process.num_train_timesteps} is below 20: betas would reach 1")
    evaluate = params.evaluate
    if evaluate.sampler in ("euler", "heun") and not flow:
        problems.append(
            f"evaluate.sampler: '{evaluate.sampler}' is for flow models; allowed here: ddpm, ddim, dpmpp_2m"
        )
    if evaluate.sampler in ("ddpm",) and flow:
        problems.append("evaluate.sampler: 'ddpm' is for beta schedules; allowed here: euler, heun, ddim, dpmpp_2m")
    if not flow and evaluate.num_steps > process.num_train_timesteps:
        problems.append(
            f"evaluate.num_steps: {evaluate.num_steps} is more than the {process.num_train_timesteps} of "
            "process.num_train_timesteps"
        )
    return problems


def _data_problems(params: Params) -> list[str]:
    data, problems = params.data, []
    kind = data.source.partition(":")[0]
    if kind not in ("avatars", "digits", "folder", "torchvision", "huggingface"):
        problems.append(
            f"data.source: '{data.source}' is not allowed; allowed: avatars, digits, folder, torchvision:NAME, "
            "huggingface:NAME"
        )
    if data.path.startswith("~"):
        problems.append(
            f"data.path: '{data.path}' begins with ~, which DVC does not know; write {Path(data.path).expanduser()}"
        )
    if (params.conditioning.style == "none") != (params.text.encoder == "none"):
        problems.append(
            f"conditioning.style: '{params.conditioning.style}' with text.encoder '{params.text.encoder}'; "
            "both or neither must be none"
        )
    if params.text.encoder in ("clip", "t5") and not params.text.name:
        problems.append(f"text.name: must name a model or folder when text.encoder is {params.text.encoder}")
    return problems


def _optim_problems(params: Params) -> list[str]:
    if params.optim.name == "muon" and params.runtime.sharding == "fsdp":
        return ["optim.name: 'muon' needs whole matrices, runtime.sharding fsdp cuts them; allowed with fsdp: adamw"]
    return []


def _evaluation_problems(params: Params) -> list[str]:
    evaluate, problems = params.evaluate, []
    for key, count in (("evaluate", evaluate.num_samples), ("quantize", params.quantize.num_samples)):
        if count < 2:
            problems.append(f"{key}.num_samples: {count}; a covariance needs at least 2")
    if not evaluate.seeds:
        problems.append("evaluate.seeds: empty; give at least one")
    if not params.benchmark.batch_sizes:
        problems.append("benchmark.batch_sizes: empty; give at least one")
    needed = {name.removesuffix("_uncompiled") for name in params.benchmark.variants}
    missing = {"dynamic_int8", "static_int8", "weight_int8"} & needed - set(params.quantize.variants)
    if missing:
        problems.append(f"benchmark.variants: {', '.join(sorted(missing))} not in quantize.variants")
    return problems
