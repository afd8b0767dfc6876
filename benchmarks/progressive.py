"""Does growing pay? FID over training time: ours grown, ours at full resolution from the start, diffusers' UNet2DModel.

    python -m benchmarks.progressive --seconds 300 --split 0.10 0.15 0.75 --split 0.15 0.20 0.65

Every contender gets the same wall time, engine, data and learning-rate shape; time spent on drawing and scoring
is not counted. --split: shares of the three stages; each split given is a contender. Needs data/prepared and
data/reference. Writes reports/progressive/: results.json, fid.png and one sheet of pictures per run. Finished runs are
kept in results.json after each: when stopped, or called with more seeds or splits, only the missing ones are trained.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.peers import make_peer
from shift_diffusion.config import Params, load_params
from shift_diffusion.data.images import to_uint8
from shift_diffusion.data.store import PreparedData
from shift_diffusion.evaluation.features import Extractor
from shift_diffusion.evaluation.metrics import scores
from shift_diffusion.evaluation.reference import Reference
from shift_diffusion.files import read_json, write_json
from shift_diffusion.models.conditioning import TextCondition
from shift_diffusion.models.unet import grow
from shift_diffusion.pictures import grid, save_png
from shift_diffusion.plots import line_plot
from shift_diffusion.process.denoiser import Denoiser
from shift_diffusion.process.losses import DenoisingLoss
from shift_diffusion.process.samplers import initial_noise, sample
from shift_diffusion.process.schedules import schedule_of
from shift_diffusion.runtime import set_up
from shift_diffusion.training import rng
from shift_diffusion.training.batches import Ahead, TrainingBatches
from shift_diffusion.training.engine import Engine
from shift_diffusion.training.lr import learning_rate
from shift_diffusion.training.objective import Objective
from shift_diffusion.training.parallel import Parallel
from shift_diffusion.training.start import make_engine, start_network

VIRTUAL_STEPS = 1000  # the learning rate is a function of the share of time that is gone
OUT = Path("reports/progressive")
PEER_LR = 7e-4  # AdamW's best of 3e-4, 7e-4, 1.5e-3 for the peer; ours has its own in params.yaml


class Peer(nn.Module):
    """diffusers' UNet2DModel behind our networks' interface: time t = sigma of flow matching, no captions."""

    def __init__(self) -> None:
        super().__init__()
        self.unet = make_peer()

    def forward(self, x_t: Tensor, log_snr: Tensor, text=None, drop=None) -> Tensor:
        t = torch.sigmoid(-log_snr / 2)
        return self.unet(x_t.contiguous(), t.expand(len(x_t)) * 1000).sample


class Contest:
    """What all contenders share; `snapshots` are made in each of the grown one's stages."""

    def __init__(self, params: Params, seconds: float, num_samples: int, snapshots: int):
        self.params, self.seconds, self.num_samples, self.snapshots = params, seconds, num_samples, snapshots
        self.environment = set_up(params.runtime)
        self.parallel = Parallel(self.environment.device.type)
        self.data, self.reference = PreparedData.open("data/prepared"), Reference.load("data/reference")
        self.extract = Extractor(params.evaluate.features, self.parallel.device, params.evaluate.batch_size)

    def phase(self, engine: Engine, params: Params, stage: int, seconds: float, snapshots: int) -> Iterator[float]:
        """Trains for `seconds`; yields the seconds so far at each snapshot. The consumer's time is not counted."""
        section = params.train.stages[stage - 1]
        batches = TrainingBatches(params, stage, self.data, schedule_of(params.process, section), 1, 0)
        rates = SimpleNamespace(lr=section.lr, warmup=20, final_drop=stage == 3, steps=VIRTUAL_STEPS)
        ahead, spent, due = Ahead(batches.make), 0.0, seconds / snapshots
        while spent < seconds:
            start, size = time.perf_counter(), batches.group_size
            lr = learning_rate(min(int(spent / seconds * VIRTUAL_STEPS), VIRTUAL_STEPS - 1), rates)
            made = ahead.take((engine.draw, size), (engine.draw + 1, size))
            engine.train_step(made, size, lr)
            spent += time.perf_counter() - start
            if spent >= min(due, seconds):
                due += seconds / snapshots
                yield spent
        ahead.close()

    def draw(self, engine: Engine, params: Params, stage: int) -> Tensor:
        """Pictures (N, 3, R, R) uint8 of the averaged weights at stage 3's resolution, for held-out captions."""
        section = params.train.stages[stage - 1]
        schedule, pictures = schedule_of(params.process, section), []
        rows = np.resize(self.data.split("validation"), self.num_samples)
        with engine.evaluating(), self.environment.autocast():
            for first in range(0, self.num_samples, 32):
                part = rows[first : first + 32]
                text = self._text(part) if params.conditioning.style != "none" else None
                denoise = Denoiser(engine.network, schedule, params.process.prediction, text, clip=True)
                seeds = list(range(first, first + len(part)))
                noise = initial_noise(seeds, (3, section.resolution, section.resolution)).to(self.parallel.device)
                pictures.append(to_uint8(sample("dpmpp_2m", denoise, noise, schedule, 12)).cpu())
        full = params.train.stages[-1].resolution
        return (
            torch.cat(pictures)
            .repeat_interleave(full // section.resolution, 2)
            .repeat_interleave(full // section.resolution, 3)
        )

    def _text(self, rows: np.ndarray) -> TextCondition:
        return TextCondition(*(part.to(self.parallel.device) for part in self.data.text(rows)))

    def fid(self, pictures: Tensor) -> float:
        statistics, features = self.reference.statistics["train"], self.reference.features["train"]
        return scores(self.extract(pictures), features, statistics, self.params.evaluate.kid_subset_size)["fid"]

    def whole(self, name: str, engine: Engine, params: Params) -> list:
        """The curve at full resolution from start to end, with as many snapshots as all stages of the grown one."""
        return self.curve(name, engine, params, 3, self.seconds, 0.0, 3 * self.snapshots)

    def curve(
        self, name: str, engine: Engine, params: Params, stage: int, seconds: float, before: float, snapshots: int
    ) -> list:
        """[(seconds, FID), ...] of one phase."""
        points = []
        for spent in self.phase(engine, params, stage, seconds, snapshots):
            pictures = self.draw(engine, params, stage)
            points.append((before + spent, self.fid(pictures)))
            print(f"{name}: {points[-1][0]:.0f} s, {engine.step} steps, FID {points[-1][1]:.0f}", flush=True)
            save_png(grid(pictures[:32], columns=8), OUT / (re.sub(r"[^a-z0-9]+", "-", name.lower()) + ".png"))
        return points


def grown(name: str, contest: Contest, params: Params, split: list[float]) -> list:
    network, points, before = None, [], 0.0
    for stage, share in enumerate(split, start=1):
        seconds = share * contest.seconds
        if network is None:
            network = start_network(stage, params, contest.data, None)
        else:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(rng.torch_seed(params.seed, stage, 0, "weights"))
                network = grow(network.cpu(), params)
        engine = make_engine(params, stage, network, contest.environment, contest.parallel)
        points += contest.curve(name, engine, params, stage, seconds, before, contest.snapshots)
        network.load_state_dict(network.state_dict() | engine.ema.averages)
        before += seconds
    return points


def full_resolution(name: str, contest: Contest, params: Params) -> list:
    engine = make_engine(params, 3, start_network(3, params, contest.data, None), contest.environment, contest.parallel)
    return contest.whole(name, engine, params)


def unet2d(name: str, contest: Contest, params: Params) -> list:
    """Trained as usual: AdamW, velocity, no captions."""
    content = params.model_dump(mode="json", by_alias=True)
    content["process"]["prediction"], content["loss"]["velocity_floor"] = "velocity", 0.0
    content["conditioning"]["style"] = content["text"]["encoder"] = "none"
    content["optim"] |= {"name": "adamw", "ema_decay": 0.995}
    content["train"]["stage-3"]["lr"] = PEER_LR
    plain = Params.model_validate(content)
    torch.manual_seed(params.seed)
    objective = Objective(Peer(), DenoisingLoss(plain.loss, "velocity"), 0.0, contest.environment.autocast)
    engine = Engine(objective, plain.optim, contest.parallel)
    return contest.whole(name, engine, plain)


def contenders(splits: list[list[float]]) -> dict[str, Callable[[str, Contest, Params], list]]:
    ours = {
        "ours, grown " + "/".join(f"{100 * share:g}" for share in split): partial(grown, split=split)
        for split in splits
    }
    return ours | {"ours, full resolution": full_resolution, "UNet2DModel": unet2d}


class Results:
    """The runs so far, on disk after each: {"settings": ..., "runs": {contender: {seed: [(seconds, FID), ...]}}}."""

    def __init__(self, settings: dict):
        self.path, self.settings, self.runs = OUT / "results.json", settings, {}
        if self.path.exists():
            found = read_json(self.path)
            other = [name for name, value in settings.items() if found["settings"].get(name) != value]
            if other:
                sys.exit(f"{self.path} holds runs with other {', '.join(other)}: move it away first")
            self.runs = found["runs"]

    def has(self, name: str, seed: int) -> bool:
        return str(seed) in self.runs.get(name, {})

    def add(self, name: str, seed: int, points: list) -> None:
        self.runs.setdefault(name, {})[str(seed)] = points
        write_json(self.path, {"settings": self.settings, "runs": self.runs})

    def summarize(self) -> None:
        """Draws the curves; prints final scores and when ours reaches the peer's. Means over a contender's seeds."""
        curves = {name: tuple(np.mean(list(runs.values()), axis=0).T.tolist()) for name, runs in self.runs.items()}
        line_plot(OUT / "fid.png", curves, "seconds of training", "FID", "mean over seeds", log=True, markers=True)
        seconds, peer = self.settings["seconds"], curves.get("UNet2DModel")
        for name, (times, values) in curves.items():
            last = [points[-1][1] for points in self.runs[name].values()]
            line = f"{name}: FID {np.mean(last):.0f} +- {np.std(last):.0f} after {seconds:.0f} s ({len(last)} seeds)"
            reached = [t for t, value in zip(times, values, strict=True) if peer and value <= peer[1][-1]]
            if reached:
                line += f"; UNet2DModel's final FID after {reached[0]:.0f} s, {reached[0] / seconds:.2f} of its time"
            print(line)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, required=True, help="training time of each contender and seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--split", type=float, nargs=3, action="append", help="may be given several times")
    parser.add_argument("--num-samples", type=int, default=192)
    parser.add_argument(
        "--snapshots", type=int, default=2, help="per stage of the grown, 3 times as many of the others"
    )
    arguments = parser.parse_args()
    base = load_params()
    settings = {name: getattr(arguments, name) for name in ("seconds", "num_samples", "snapshots")}
    results = Results(settings | {"params": base.model_dump(mode="json", by_alias=True)})
    contest = Contest(base, arguments.seconds, arguments.num_samples, arguments.snapshots)
    for seed in arguments.seeds:
        for name, run in contenders(arguments.split or [[0.10, 0.15, 0.75]]).items():
            if not results.has(name, seed):
                params = base.model_copy(update={"seed": seed})
                results.add(name, seed, run(f"{name}, seed {seed}", contest, params))
        results.summarize()


if __name__ == "__main__":
    main()
