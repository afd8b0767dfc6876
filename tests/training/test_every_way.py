"""Every schedule with its predictions, every loss, every conditioning style: on real digits at 32 pixels the loss
falls within some hundred steps, and each sampler's whole way stays finite."""

import pytest
import torch

from shift_diffusion.data.prepare import prepare_data
from shift_diffusion.data.store import PreparedData
from shift_diffusion.process.samplers import samplers_for
from shift_diffusion.sampling import Pipeline
from shift_diffusion.training.loop import train
from tests.conftest import merge, tiny_params

pytestmark = pytest.mark.slow

STEPS, BATCH = 240, 8
BASE = {
    "model": {"widths": [16, 24], "embedding_dim": 32, "norm_groups": 4, "head_dim": 8},
    "optim": {"name": "adamw", "ema_decay": 0.98},
    "loss": {"velocity_floor": 0.0},
    "train": {
        "cadence": {"log": 20, "validate": STEPS, "checkpoint": STEPS},
        "stage-1": {"resolution": 32, "batch_size": BATCH, "images": STEPS * BATCH, "warmup": 10, "lr": 2e-3},
        "stage-2": {"resolution": 64},
        "stage-3": {"resolution": 128},
    },
}


def loss(prediction="x0", schedule="flow", **weights):
    return {"loss": {"mse": 0.0, **weights}, "process": {"schedule": schedule, "prediction": prediction}}


PROCESSES = {
    f"{schedule}-{prediction}": {"process": {"schedule": schedule, "prediction": prediction}}
    for schedule, predictions in {
        "flow": ("velocity", "x0"),
        "hybrid": ("eps", "x0", "v", "velocity"),
        **dict.fromkeys(("linear", "cosine", "cosine_beta"), ("eps", "x0", "v")),
    }.items()
    for prediction in predictions
}
LOSSES = {
    "l1": loss(l1=1.0),
    "huber": loss(huber=1.0),
    "cross_entropy": loss(cross_entropy=1.0),
    "min_snr": loss("v", "cosine", mse=1.0, min_snr_gamma=5.0),
    "velocity_floor": loss(mse=1.0, velocity_floor=0.05),
    "perceptual": loss("velocity", mse=1.0, perceptual=0.1),
    "gram": loss("velocity", mse=1.0, gram=0.1),
}
STYLES = {
    style: {"conditioning": {"style": style}, "text": {"encoder": "none" if style == "none" else "minilm"}}
    for style in ("flux", "qwen", "sdxl", "none")
}
WAYS = PROCESSES | LOSSES | STYLES


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> PreparedData:
    folder = tmp_path_factory.mktemp("digits") / "prepared"
    params = tiny_params()
    prepare_data(params.data, params.text, (32,), folder)
    return PreparedData.open(folder)


@pytest.mark.parametrize("way", WAYS)
def test_trains_and_samples(way, digits, tmp_path):
    params, losses = tiny_params(merge(BASE, WAYS[way])), []

    def on_metrics(step, values):
        if "loss" in values:
            losses.append(values["loss"])

    result = train(1, params, digits, tmp_path, on_metrics=on_metrics)
    assert len(losses) == STEPS // 20
    assert sum(losses[-3:]) / 3 < 0.9 * losses[0], losses
    pipeline = Pipeline(result.averaged, result.config)
    prompts = ["the digit three", ""] if pipeline.conditional else None

    def on_step(step, t, x_t, x_0):
        assert torch.isfinite(torch.stack([x_t, x_0])).all(), f"step {step}, t {t}"

    for sampler in samplers_for(pipeline.schedule.family):
        pictures = pipeline.sample(
            prompts, [0, 1], sampler=sampler, num_steps=8, guidance_scale=1.5 if prompts else 1.0, on_step=on_step
        )
        assert pictures.float().std() > 5, f"{sampler} gives flat pictures"
        assert not torch.equal(pictures[0], pictures[1])
