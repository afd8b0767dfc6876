"""Rules about generated pictures, from the numbers of reports/evaluate/metrics.json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shift_diffusion.config import Params
from shift_diffusion.evaluation.finding import Finding

COLLAPSED_RECALL = 0.2  # of what held-out real pictures reach
COLLAPSED_VARIETY = 0.5  # of the real pictures'
TOO_SMOOTH = 0.5  # of the real pictures' power at high frequencies
TOO_NOISY = 2.5
DULL = 0.7  # of the real pictures' saturation or spread of hues
COLORLESS_DATA = 0.02  # saturation below which real pictures are gray themselves
MEMORIZED = 0.25  # of the pictures; 0.01 is what unseen pictures give
FLUCTUATES = 0.08  # standard deviation over mean of the FID
CAPTION_IGNORED = 0.25  # chance is 0.1


def sample_findings(measured: Mapping[str, float], params: Params | None) -> Iterator[Finding]:
    """measured: of Evaluation.run, with NAME_real beside NAME."""
    for rule in (collapse, smooth, noisy, dull, memorized, fluctuates, ignores_captions):
        yield from rule(measured, params)


def _score(measured: Mapping[str, float], name: str) -> tuple[float, float] | None:
    """(value, its floor: what real pictures reach) of a score, whatever features it was made with."""
    for key, floor in measured.items():
        if key.startswith(f"{name}_floor_"):
            value = measured.get(f"{name}_{key.removeprefix(f'{name}_floor_')}")
            return None if value is None else (value, floor)
    return None


def _beside_real(measured: Mapping[str, float], name: str) -> tuple[float, float] | None:
    if name in measured and f"{name}_real" in measured:
        return measured[name], measured[f"{name}_real"]
    return None


def collapse(measured: Mapping[str, float], params: Params | None) -> Iterator[Finding]:
    recall, variety = _score(measured, "recall"), _beside_real(measured, "variety")
    precision = _score(measured, "precision")
    signs = []
    if variety and variety[0] < COLLAPSED_VARIETY * variety[1]:
        signs.append(f"spread between pictures {variety[0]:.3f}, real {variety[1]:.3f}")
    # low recall alone may as well be pictures that look like nothing real
    recognizable = precision is not None and precision[0] > 0.5 * precision[1]
    if recall and recall[0] < COLLAPSED_RECALL * recall[1] and recognizable:
        signs.append(f"recall {recall[0]:.2f}, real {recall[1]:.2f}")
    if signs:
        guidance = params.evaluate.guidance_scale if params else 0.0
        change = f"evaluate.guidance_scale: 1.0 (now {guidance:g}); " if guidance > 2 else ""
        change += "more varied pictures (data.num_images: null), more train.stage-1.images, where variety is learned"
        yield Finding("mode collapse", "; ".join(signs), change)


def smooth(measured: Mapping[str, float], params: Params | None) -> Iterator[Finding]:
    ratio = measured.get("high_frequency_ratio")
    if ratio is not None and ratio < TOO_SMOOTH:
        gram = params.loss.gram if params else 0.0
        change = (
            f"train.stage-3.loss.gram: {2 * gram or 0.1:g}; train.stage-3.final_drop: true; more train.stage-3.images"
        )
        yield Finding("texture is over-smooth", f"power at high frequencies {ratio:.2f} of the real pictures'", change)


def noisy(measured: Mapping[str, float], params: Params | None) -> Iterator[Finding]:
    ratio = measured.get("high_frequency_ratio")
    if ratio is not None and ratio > TOO_NOISY:
        change = "train.stage-3.final_drop: true; more train.stage-3.images; "
        change += f"evaluate.num_steps: {2 * params.evaluate.num_steps}" if params else "evaluate.num_steps: more"
        yield Finding("noise is left over", f"power at high frequencies {ratio:.2f} times the real pictures'", change)


def dull(measured: Mapping[str, float], params: Params | None) -> Iterator[Finding]:
    saturation, hues = _beside_real(measured, "saturation"), _beside_real(measured, "hue_spread")
    if saturation is None or saturation[1] < COLORLESS_DATA:
        return
    signs = [
        f"{name} {pair[0]:.3f}, real {pair[1]:.3f}"
        for name, pair in (("saturation", saturation), ("spread of hues", hues))
        if pair and pair[0] < DULL * pair[1]
    ]
    if signs:
        now = params.train.stages[-1].augment.hsv if params else 0.0
        change = f"train.stage-1.augment.hsv, train.stage-2.augment.hsv, train.stage-3.augment.hsv: {2 * now or 0.05:g}"
        yield Finding("color is dull", "; ".join(signs), change)


def memorized(measured: Mapping[str, float], params: Params | None) -> Iterator[Finding]:
    share = measured.get("memorized_share")
    if share is not None and share > MEMORIZED:
        evidence = f"{share:.0%} of the pictures come nearer to a training picture than 99 % of the held-out ones do"
        change = "more pictures (data.num_images), augment.flip or augment.shift, fewer train.stage-3.images"
        yield Finding("draws training pictures from memory", evidence, change)


def fluctuates(measured: Mapping[str, float], params: Params | None) -> Iterator[Finding]:
    for name, spread in measured.items():
        if name.startswith("fid_") and name.endswith("_std"):
            mean = measured[name.removesuffix("_std")]
            if spread > FLUCTUATES * mean:
                change = "optim.ema_decay: nearer to 1 (longer average); more evaluate.num_samples"
                change += f"; evaluate.num_steps: {2 * params.evaluate.num_steps}" if params else ""
                evidence = f"FID {mean:.4g} with a standard deviation of {spread:.3g} over the seeds"
                yield Finding("quality of the samples fluctuates", evidence, change)


def ignores_captions(measured: Mapping[str, float], params: Params | None) -> Iterator[Finding]:
    share = measured.get("caption_match")
    if share is not None and share < CAPTION_IGNORED:
        scale = max(2 * params.evaluate.guidance_scale, 3.0) if params else 3.0
        change = f"evaluate.guidance_scale: {scale:g}; conditioning.drop_probability: 0.1; more train.stage-3.images"
        yield Finding("captions have little effect", f"caption match {share:.2f}, by chance 0.10", change)
