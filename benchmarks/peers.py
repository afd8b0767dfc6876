"""Our pipeline's model against diffusers' UNet2DModel: the same pictures, the same training time, the same score.

    python -m benchmarks.peers --seconds 600

trains the peer on data/prepared for that long (give it the time that stages 1 to 3 took: they print it), draws as many
pictures as evaluate did, and prints both scores with n and the floor. Needs a finished pipeline in this folder.
The peer is trained the usual way: full resolution from the start, flow matching on the velocity with the same shift,
AdamW, average of weights, no captions, no guidance.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from shift_diffusion.config import load_params
from shift_diffusion.data.images import to_float, to_uint8
from shift_diffusion.data.store import PreparedData
from shift_diffusion.evaluation.features import Extractor
from shift_diffusion.evaluation.metrics import scores
from shift_diffusion.evaluation.reference import Reference
from shift_diffusion.files import read_json
from shift_diffusion.pictures import grid, save_png
from shift_diffusion.process.samplers import initial_noise
from shift_diffusion.progress import progress
from shift_diffusion.runtime import set_up

BATCH_SIZE, LR, WARMUP, EMA_DECAY = 16, 7e-4, 50, 0.995
STEPS, SAMPLE_BATCH = 25, 64


def make_peer() -> nn.Module:
    """diffusers' unconditional UNet at 64 pixels, 3.4 M parameters."""
    from diffusers import UNet2DModel

    return UNet2DModel(
        sample_size=64,
        layers_per_block=1,
        block_out_channels=(24, 48, 96, 128),
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "DownBlock2D", "DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D", "UpBlock2D", "UpBlock2D"),
    )


def velocity(network: nn.Module, x_t: Tensor, t: Tensor) -> Tensor:
    return network(x_t, t * 1000).sample.float()


def train(data: PreparedData, resolution: int, shift: float, seconds: float, environment) -> tuple[nn.Module, int]:
    """Trains for `seconds` of wall time; returns the averaged network and the number of images seen."""
    torch.manual_seed(0)
    network = make_peer().to(environment.device)
    average = copy.deepcopy(network).eval().requires_grad_(False)
    optimizer = torch.optim.AdamW(network.parameters(), LR, betas=(0.9, 0.99), fused=True)
    rows, step, start = torch.from_numpy(data.split("train").copy()), 0, time.perf_counter()
    last_line = start
    while (elapsed := time.perf_counter() - start) < seconds:
        rate = 0.5 * (1 + math.cos(math.pi * elapsed / seconds)) + 0.02
        for group in optimizer.param_groups:
            group["lr"] = LR * min(1, (step + 1) / WARMUP) * rate
        picked = rows[torch.randint(len(rows), (BATCH_SIZE,))].numpy()
        x_0 = to_float(data.batch(picked, resolution).to(environment.device)).contiguous()
        eps, t = torch.randn_like(x_0), torch.sigmoid(torch.randn(BATCH_SIZE, device=x_0.device))
        t = shift * t / (1 + (shift - 1) * t)
        share = t[:, None, None, None]
        with environment.autocast():
            output = velocity(network, (1 - share) * x_0 + share * eps, t)
        loss = (output - (eps - x_0)).square().mean()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        decay = min(EMA_DECAY, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(average.parameters()), list(network.parameters()), 1 - decay)
        if time.perf_counter() - last_line > 30:
            last_line = time.perf_counter()
            print(
                f"peer: {elapsed:.0f} of {seconds:.0f} s, {step * BATCH_SIZE} images, loss {loss.item():.4f}",
                flush=True,
            )
    return average, step * BATCH_SIZE


@torch.no_grad()
def draw(network: nn.Module, count: int, resolution: int, shift: float, environment) -> Tensor:
    """(count, 3, R, R) uint8 by Euler's method."""
    times = torch.linspace(1, 0, STEPS + 1)
    times = shift * times / (1 + (shift - 1) * times)
    pictures = []
    for first in progress(range(0, count, SAMPLE_BATCH), "peer's pictures", "batch"):
        seeds = range(first, min(first + SAMPLE_BATCH, count))
        x = initial_noise(list(seeds), (3, resolution, resolution)).to(environment.device)
        for now, then in zip(times, times[1:], strict=False):
            with environment.autocast():
                x = x + (then - now) * velocity(network, x, now.expand(len(x)).to(x.device))
        pictures.append(to_uint8(x).cpu())
    return torch.cat(pictures)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, required=True, help="training time of the peer")
    parser.add_argument("--out", type=Path, default=Path("reports/peers.png"))
    arguments = parser.parse_args()
    params, environment = load_params(), set_up(load_params().runtime)
    stage, section = params.train.stage_3, params.evaluate
    data, reference = PreparedData.open("data/prepared"), Reference.load("data/reference")
    ours = read_json("reports/evaluate/metrics.json")
    shift = float(stage.timestep_shift)
    network, images = train(data, stage.resolution, shift, arguments.seconds, environment)
    pictures = draw(network, section.num_samples, stage.resolution, shift, environment)
    save_png(grid(pictures[:32], columns=8), arguments.out)
    features = Extractor(section.features, environment.device, section.batch_size)(pictures)
    peer = scores(features, reference.features["train"], reference.statistics["train"], section.kid_subset_size)
    name, count = section.features, section.num_samples
    parameters = sum(p.numel() for p in network.parameters())
    print(f"UNet2DModel: {parameters:,} parameters, {images} images in {arguments.seconds:.0f} s; {arguments.out}")
    for score in ("fid", "kid", "precision", "recall"):
        mine, floor = ours[f"{score}_{name}"], ours[f"{score}_floor_{name}"]
        line = f"{score}_{name} (n = {count}): UNet2DModel {peer[score]:.4g}, ours {mine:.4g}, floor {floor:.4g}"
        print(f"{line}, ratio {mine / peer[score]:.3f}" if peer[score] else line)


if __name__ == "__main__":
    main()
