"""FID against images seen: what each stage of progressive training has reached, judged at the final resolution."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor

from shift_diffusion.config import Evaluate
from shift_diffusion.data.store import PreparedData
from shift_diffusion.evaluation.features import Extractor
from shift_diffusion.evaluation.frechet import FeatureStatistics, frechet_distance
from shift_diffusion.evaluation.reference import Reference
from shift_diffusion.evaluation.samples import Model, draw_samples
from shift_diffusion.files import write_text_atomic
from shift_diffusion.plots import line_plot

MOST_SAMPLES = 256  # a point per stage: enough for a curve


def stage_features(model: Model, section: Evaluate, data: PreparedData, resolution: int) -> Tensor:
    """Features (n, d) of an earlier stage's pictures for the first seed, enlarged to the final resolution."""
    count = min(MOST_SAMPLES, section.num_samples)
    pictures = draw_samples(model, section, data, section.seeds[0], count=count).pictures
    extractor = Extractor(section.features, model.device, section.batch_size)
    return extractor(enlarged(pictures, resolution))


def fid_against_images(
    resolutions: Sequence[int], images: Sequence[int], features: Sequence[Tensor], reference: Reference
) -> list[dict[str, float]]:
    """One row per stage, in the order of training, all with the same number of pictures.

    Args:
        resolutions: of the stages, pixels.
        images: that training had seen by the end of each stage, earlier ones included.
        features: (n, d) of each stage's pictures, all drawn with the same seeds.

    Returns:
        rows of stage, resolution, images, fid, num_samples.
    """
    count = min(map(len, features))
    real = reference.statistics["train"]
    fids = [frechet_distance(FeatureStatistics.of(rows[:count]), real) for rows in features]
    names = ("stage", "resolution", "images", "fid", "num_samples")
    columns = zip(resolutions, images, fids, strict=True)
    return [dict(zip(names, (number, *row, count), strict=True)) for number, row in enumerate(columns, start=1)]


def enlarged(pictures: Tensor, resolution: int) -> Tensor:
    """uint8 (N, 3, R, R) at a higher resolution, bilinear: what someone sees who looks at the small picture."""
    if pictures.shape[-1] == resolution:
        return pictures
    return F.interpolate(pictures.float(), size=(resolution, resolution), mode="bilinear").round().byte()


def save_fid_against_images(rows: Sequence[dict[str, float]], floor: float, name: str, folder: Path) -> None:
    """As fid_vs_images.csv and .png; floor: what held-out real pictures give."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text_atomic(folder / "fid_vs_images.csv", text.getvalue())
    images = [row["images"] for row in rows]
    series = {
        "stages 1 to 3": (images, [row["fid"] for row in rows]),
        "floor: held-out pictures": (images, [floor] * len(images)),
    }
    line_plot(
        folder / "fid_vs_images.png", series, "images seen", f"FID ({name})", "FID against images seen", markers=True
    )
