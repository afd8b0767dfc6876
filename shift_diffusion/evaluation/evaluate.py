"""The whole evaluation of a model folder: scores, checks and pictures, from samples drawn with fixed seeds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from shift_diffusion.config import ConfigError, Evaluate
from shift_diffusion.data.store import PreparedData
from shift_diffusion.evaluation import charts
from shift_diffusion.evaluation.appearance import appearance
from shift_diffusion.evaluation.caption_match import NUM_OTHERS, caption_match, true_pictures
from shift_diffusion.evaluation.features import Extractor
from shift_diffusion.evaluation.frechet import FeatureStatistics, frechet_distance
from shift_diffusion.evaluation.metrics import mean_and_spread, scores
from shift_diffusion.evaluation.neighbors import memorization, nearest
from shift_diffusion.evaluation.psnr import psnr_by_noise_level
from shift_diffusion.evaluation.reference import Reference
from shift_diffusion.evaluation.samples import Model, Samples, draw_samples, save_samples
from shift_diffusion.evaluation.spectrum import high_frequency_ratio, power_spectrum
from shift_diffusion.process.denoiser import Denoiser
from shift_diffusion.process.samplers import samplers_for

SCORES = ("fid", "kid", "precision", "recall")
LOOKS = ("saturation", "hue_spread", "variety")
PSNR_PICTURES = 128
STEPS_SAMPLES = 512  # at most, for FID against steps: a point per sampler and number of steps


class Evaluation:
    """One model against one reference. `run` does everything; the parts can be called alone."""

    def __init__(self, model: Model, section: Evaluate, data: PreparedData, reference: Reference):
        if reference.name != section.features or reference.resolution != model.resolution:
            raise ConfigError(
                [
                    f"data/reference: made with {reference.name} at {reference.resolution} pixels, wanted "
                    f"{section.features} at {model.resolution}; run `dvc repro reference`"
                ]
            )
        if reference.content_hash != data.content_hash:
            raise ConfigError(["data/reference: made of other data than data/prepared; run `dvc repro reference`"])
        self.model, self.section, self.data, self.reference = model, section, data, reference
        self.extractor = Extractor(section.features, model.device, section.batch_size)

    def run(self, out: Path) -> tuple[dict[str, Any], Tensor]:
        """Writes samples and pictures under `out`.

        Returns:
            the metrics, flat and finite; features (num_samples, d) of the first seed's pictures.
        """
        per_seed, first = [], None
        for seed in self.section.seeds:
            samples = draw_samples(self.model, self.section, self.data, seed)
            features = self.extractor(samples.pictures)
            per_seed.append(self.measure(samples, features))
            first = first or (samples, features)
        save_samples(first[0], out / "samples", self.section)
        metrics = self._named(mean_and_spread(per_seed)) | self.floor() | self.denoising(out)
        self.draw(*first, out)
        charts.save_fid_against_steps(self.fid_against_steps(first[1]), self.reference.name, out)
        counts = {"num_samples": self.section.num_samples, "num_seeds": len(self.section.seeds)}
        return metrics | counts, first[1]

    def measure(self, samples: Samples, features: Tensor) -> dict[str, float]:
        """All numbers of one seed's samples."""
        real = self.reference
        found = scores(features, real.features["train"], real.statistics["train"], self.section.kid_subset_size)
        found |= memorization(features, real.features["validation"], real.features["train"])
        found |= self._caption_match(samples, features)
        looks = appearance(samples.pictures)
        found |= {name: looks[name] for name in LOOKS}
        found["high_frequency_ratio"] = high_frequency_ratio(power_spectrum(samples.pictures), real.spectrum)
        return found

    def _caption_match(self, samples: Samples, features: Tensor) -> dict[str, float]:
        """Nothing for models without captions, and for data with fewer than ten."""
        places, pictures = true_pictures(self.data, samples.indices, self.reference.resolution)
        captions = [samples.prompts[place] for place in places.tolist()]
        if len(set(captions)) <= NUM_OTHERS:
            return {}
        return {"caption_match": caption_match(features[places], self.extractor(pictures), captions)}

    def floor(self) -> dict[str, float]:
        """What real pictures give: scores of held-out ones, as many as there are up to num_samples, and their looks."""
        real, count = self.reference, self.section.num_samples
        held_out = real.features["validation"][:count]
        found = scores(held_out, real.features["train"], real.statistics["train"], self.section.kid_subset_size)
        floors = {f"{name}_floor_{real.name}": found[name] for name in SCORES}
        looks = {f"{name}_real": real.appearance[name] for name in LOOKS}
        return floors | looks | {"floor_num_samples": len(held_out)}

    def denoising(self, out: Path) -> dict[str, float]:
        """PSNR of estimates of held-out pictures."""
        rows = self.data.split("validation")[:PSNR_PICTURES]
        text = self.data.text(rows) if self.model.conditional else None

        def denoise_of(part: slice) -> Callable[[Tensor, float], Tensor]:
            some = None if text is None else type(text)(*(value[part].to(self.model.device) for value in text))
            denoise = Denoiser(self.model.network, self.model.schedule, self.model.prediction, some, clip=True)
            return lambda x_t, t: denoise(x_t.to(self.model.device), t)

        images = self.data.batch(rows, self.reference.resolution)
        levels = psnr_by_noise_level(denoise_of, images, self.model.schedule, batch_size=self.section.batch_size)
        charts.save_psnr(levels, out / "psnr.png")
        named = {f"psnr_log_snr_{level:.0f}": value for level, value in levels.items()}
        return named | {"psnr": sum(levels.values()) / len(levels)}

    def draw(self, samples: Samples, features: Tensor, out: Path) -> None:
        """Grid, trajectory, nearest neighbors and spectrum of the first seed."""
        charts.save_grid(samples, out / "grid.png")
        trajectory = charts.Trajectory()
        few = min(charts.TRAJECTORIES, len(samples.seeds))
        draw_samples(self.model, self.section, self.data, self.section.seeds[0], count=few, on_step=trajectory.record)
        trajectory.save(out / "trajectory.png")
        real = self.reference
        found = nearest(features, real.features["train"])
        charts.save_neighbors(samples, found, real.indices["train"], self.data, real.resolution, out / "neighbors.png")
        charts.save_spectrum(power_spectrum(samples.pictures), real.spectrum, out / "spectrum.png")

    def fid_against_steps(self, features: Tensor) -> list[dict[str, float | str]]:
        """FID for every sampler that suits the model and every number of steps in evaluate.sampler_steps.

        Args:
            features: of the first seed's samples; their sampler and steps are one row, the only one when
                sampler_steps is empty.

        Returns:
            rows of sampler, num_steps, fid, num_samples, all of the same seed and number of pictures.
        """
        count, section = min(STEPS_SAMPLES, self.section.num_samples), self.section
        done = {(section.sampler, section.num_steps): features[:count]}
        for name in samplers_for(self.model.schedule.family):
            for steps in section.sampler_steps:
                if (name, steps) not in done:
                    how = {"count": count, "sampler": name, "num_steps": steps}
                    samples = draw_samples(self.model, section, self.data, section.seeds[0], **how)
                    done[name, steps] = self.extractor(samples.pictures)
        real = self.reference.statistics["train"]
        fids = {key: frechet_distance(FeatureStatistics.of(rows), real) for key, rows in done.items()}
        return [
            {"sampler": name, "num_steps": steps, "fid": fid, "num_samples": count}
            for (name, steps), fid in sorted(fids.items())
        ]

    def _named(self, found: dict[str, float]) -> dict[str, float]:
        """Scores carry the name of the feature network they were made with, before a possible _std."""
        named = {}
        for name, value in found.items():
            score, suffix = name.removesuffix("_std"), "_std" if name.endswith("_std") else ""
            constant = suffix and score in ("kid_subset_size", "few_samples", "nearest_train_distance_held_out")
            if not constant:
                named[f"{score}_{self.reference.name}{suffix}" if score in SCORES else name] = value
        return named
