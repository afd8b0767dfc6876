"""From params.yaml to the objects of a run, and all that can be refused before the first step."""

from __future__ import annotations

import torch
from torch import nn

from shift_diffusion.config import ConfigError, Params
from shift_diffusion.data.store import PreparedData
from shift_diffusion.models.perceptual import load_perceptual
from shift_diffusion.models.unet import NestedUNet, build_network, grow
from shift_diffusion.process.losses import DenoisingLoss
from shift_diffusion.runtime import Environment
from shift_diffusion.training import rng
from shift_diffusion.training.engine import Engine
from shift_diffusion.training.objective import Objective
from shift_diffusion.training.parallel import Parallel

_COPIES = 4  # of the weights in a checkpoint: themselves, EMA, two moments of AdamW


def start_network(stage: int, params: Params, data: PreparedData, init: NestedUNet | None) -> NestedUNet:
    """The stage's network before its first step; new weights are a function of (seed, stage)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(rng.torch_seed(params.seed, stage, 0, "weights"))
        return build_network(params, stage, data.text_dim) if init is None else grow(init, params)


def make_engine(params: Params, stage: int, network: nn.Module, environment: Environment, parallel: Parallel) -> Engine:
    """Loads a perceptual network only if a loss with a weight asks for it."""
    section = params.loss_of(params.train.stages[stage - 1])
    perceptual = None
    if section.perceptual or section.gram:
        perceptual = load_perceptual(section.perceptual_network).to(parallel.device)
    if params.runtime.compile:
        network.compile()  # in place: names and state stay those of the plain network
    loss = DenoisingLoss(section, params.process.prediction, perceptual)
    objective = Objective(network, loss, params.shift.penalty, environment.autocast)
    scaler = torch.amp.GradScaler(parallel.device.type) if environment.dtype == torch.float16 else None
    return Engine(objective, params.optim, parallel, scaler)


def check_stage(params: Params, stage: int, data: PreparedData, num_steps: int, world: int) -> None:
    """Refuses what only data and number of processes reveal.

    Raises:
        ConfigError: one line per problem.
    """
    section, key, problems = params.train.stages[stage - 1], f"train.stage-{stage}", []
    if section.warmup >= num_steps:
        problems.append(f"{key}.warmup: {section.warmup} steps, but {world} processes make only {num_steps}")
    for name in ("train", "validation"):
        if not len(data.split(name)):
            problems.append(f"data: no image in the split '{name}'; {key} can't make a step")
    if params.runtime.sharding == "fsdp" and params.runtime.precision == "float16" and world > 1:
        problems.append("runtime.precision: float16 with sharding fsdp is not supported; use bfloat16")
    if problems:
        raise ConfigError(problems)


def bytes_to_keep(params: Params, stage: int, text_dim: int | None) -> int:
    """What the checkpoints and models of this stage and all later ones take on the disk, about."""
    total = 0
    for later in range(stage, len(params.train.stages) + 1):
        with torch.device("meta"):
            network = build_network(params, later, text_dim)
        weights = sum(p.numel() * p.element_size() for p in network.state_dict().values())
        # kept ones, the one being written, an interrupted one; then model.safetensors and raw.safetensors
        total += weights * (_COPIES * (params.train.cadence.keep_checkpoints + 2) + 2)
    return total
