"""A trained model of each conditioning style within the limits of the stage (case 26): early, late, in pictures."""

import json

import pytest
import torch
from torch.nn import functional as F

from shift_diffusion.data.images import to_float
from shift_diffusion.data.prepare import prepare_data
from shift_diffusion.data.store import PreparedData
from shift_diffusion.evaluation.features import EMBEDDED, Extractor
from shift_diffusion.evaluation.reference import Reference, build_reference
from shift_diffusion.models.unet import build_network, network_config
from shift_diffusion.process.forward import add_noise
from shift_diffusion.process.schedules import schedule_of
from shift_diffusion.quantization.calibration import calibration_and_held_out
from shift_diffusion.quantization.quantize import QUALITY, Quantization
from shift_diffusion.same_seeds import SameSeeds
from tests.conftest import merge, tiny_params

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*compare this FID only")]

STEPS, BATCH, SIDE = 80, 32, 8
OVERLAY = {
    "data": {"source": "digits", "num_images": 300, "validation_fraction": 0.3, "workers": 1},
    "process": {"prediction": "x0"},
    "evaluate": {"num_steps": 4, "guidance_scale": 1.5},
    "quantize": {"max_error": 0.1, "max_fid_increase": 0.1, "num_samples": 64},  # the error as in params.yaml
}


@pytest.fixture(scope="module")
def real(tmp_path_factory):
    params, root = tiny_params(OVERLAY), tmp_path_factory.mktemp("digits")
    prepare_data(params.data, params.text, [8, 16, 32], root / "prepared")
    data = PreparedData.open(root / "prepared")
    build_reference(data, SIDE, Extractor(EMBEDDED), root / "reference")
    return data, Reference.load(root / "reference")


def train(params, data):
    """A network of stage 1 after a short, real training, and its loss at the start and at the end."""
    torch.manual_seed(0)
    network, schedule = build_network(params, 1, data.text_dim), schedule_of(params.process, params.train.stage_1)
    optimizer, split, losses = torch.optim.AdamW(network.parameters(), lr=3e-3), data.split("train"), []
    for _ in range(STEPS):
        rows = split[torch.randint(len(split), (BATCH,)).numpy()]
        x_0, t = to_float(data.batch(rows, SIDE)), torch.rand(BATCH, dtype=torch.float64).clamp(0.02, 0.98)
        x_t = add_noise(x_0, torch.randn_like(x_0), schedule.alpha(t), schedule.sigma(t))
        loss = F.mse_loss(network(x_t.float(), schedule.log_snr(t).float(), data.text(rows)), x_0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return network.eval().requires_grad_(False), sum(losses[:5]) / 5, sum(losses[-5:]) / 5


@pytest.mark.parametrize("style", ["flux", "qwen", "sdxl"])
def test_int8_of_a_trained_model_stays_within_the_limits(real, tmp_path, style):
    data, reference = real
    params = tiny_params(merge(OVERLAY, {"conditioning": {"style": style}}))
    network, first, last = train(params, data)
    assert last < 0.5 * first, "it has learned something that rounding could spoil"
    process = {**schedule_of(params.process, params.train.stage_1).settings(), "prediction": params.process.prediction}
    config = {"network": network_config(params, 1, data.text_dim), "process": process, "resolution": SIDE}
    config["text"] = params.text.model_dump()
    score = SameSeeds(config, params.evaluate, data, reference, params.quantize.num_samples)
    assert score(network) == score(network), "the same seeds and captions: a difference is the variant's"
    inputs = calibration_and_held_out(data, config, params.quantize)
    work = Quantization(network, config, params.quantize, *inputs, score)
    found = work.run(tmp_path / "int8", tmp_path / "layers.csv", 1_000_000)
    for variant in params.quantize.variants:
        assert 0 < found[variant]["error_noisy"] < 0.1
        assert 0 < found[variant]["error_clean"] < 0.1
    stored = json.loads((tmp_path / "int8" / QUALITY).read_text())["metrics"]
    assert {name: values["fid"] for name, values in stored.items()}.keys() == {"float32", *params.quantize.variants}
    assert all(values["fid"] > 0 for values in stored.values()), "both scores, side by side"
