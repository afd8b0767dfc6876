"""What a training stage will cost, measured on a few real steps with random pictures."""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch

from shift_diffusion.config import Params
from shift_diffusion.models.conditioning import TextCondition
from shift_diffusion.models.unet import build_network
from shift_diffusion.runtime import Environment
from shift_diffusion.training.muon import by_shape, is_hidden_matrix, orthogonalize

_TEXT_DIM = 384  # of MiniLM; other encoders change the cost by less than the measurement's noise
_STATES = 5  # weights, average, two moments of the optimizer, and the raw copy of a checkpoint's weights


@dataclass(frozen=True)
class Estimate:
    parameters: int
    checkpoint_bytes: int
    images_per_second: float


def estimate_stage(params: Params, number: int, environment: Environment, steps: int = 2) -> Estimate:
    """Times `steps` steps of stage 1, 2 or 3, after one that warms up: forward, backward, and what Muon computes.

    Without an optimizer object, which takes longer to import than all of this to run.
    """
    stage = params.train.stages[number - 1]
    network = build_network(params, number, text_dim=None if params.text.encoder == "none" else _TEXT_DIM)
    network = network.to(environment.device, memory_format=torch.channels_last)
    step = _step_function(params, network, stage.resolution, stage.batch_size, environment)
    step()
    started = time.perf_counter()
    for _ in range(steps):
        step()
    seconds = (time.perf_counter() - started) / steps
    count = sum(parameter.numel() for parameter in network.parameters())
    return Estimate(count, _STATES * 4 * count, stage.batch_size / seconds)


def _step_function(params: Params, network, resolution: int, batch_size: int, environment: Environment):
    device = environment.device
    x = torch.randn(batch_size, 3, resolution, resolution, device=device).contiguous(memory_format=torch.channels_last)
    log_snr = torch.linspace(-4, 4, batch_size, device=device)
    text = None
    if params.text.encoder != "none":
        length = params.text.max_tokens
        tokens = torch.randn(batch_size, length, _TEXT_DIM, device=device)
        mask = torch.ones(batch_size, length, dtype=torch.bool, device=device)
        text = TextCondition(tokens, mask, tokens[:, 0])

    hidden = [p for name, p in network.named_parameters() if is_hidden_matrix(name, p)]

    def step() -> None:
        with environment.autocast():
            output = network(x, log_snr, text)
        output.float().square().mean().backward()
        if params.optim.name == "muon":
            for same in by_shape(p for p in hidden if p.grad is not None):
                orthogonalize(torch.stack([p.grad.flatten(1) for p in same]))
        network.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()

    return step
