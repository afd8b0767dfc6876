"""The stage's work: limits on error and FID, what is written when they hold and when they don't."""

import csv
import json

import pytest
import torch

from shift_diffusion.config import ConfigError
from shift_diffusion.quantization.quantize import QUALITY, Quantization, prediction_errors
from shift_diffusion.quantization.saving import available_variants, load_quantized
from shift_diffusion.quantization.static_int8 import relative_error
from tests.quantization.conftest import make_config, make_inputs


@pytest.fixture
def work(tiny_params, network, batches):
    """Makes the stage's work with overrides of the section; its score is far from quick FID, but of the same kind."""
    target = network(*make_inputs(seed=30))

    def score(candidate):
        distance = (candidate(*make_inputs(seed=30)) - 0.9 * target).square().sum()
        return {"fid": float(distance), "kid": float(distance) / 1e3}

    def make(**section):
        quantize = {"max_error": 0.1, "max_fid_increase": 0.5} | section
        params = tiny_params({"quantize": quantize, "benchmark": {"variants": ["float32"]}})
        held_out = [make_inputs(seed=20)]
        return Quantization(network, make_config(network), params.quantize, batches, held_out, score)

    return make


def test_all_variants_are_written_measured_and_accounted_for(tmp_path, work, network):
    metrics = work().run(tmp_path / "int8", tmp_path / "layers.csv", 1_000_000, seed=0)
    assert available_variants(tmp_path / "int8") == ["static_int8", "dynamic_int8", "weight_int8"]
    for name in available_variants(tmp_path / "int8"):
        found = metrics[name]
        assert 0 < found["error"] < 0.1
        assert found["fid_increase"] == pytest.approx(found["fid"] / metrics["float32"]["fid"] - 1)
        assert found["file_ratio"] == pytest.approx(found["file_mb"] / 1.0)
        batch = make_inputs(seed=20)
        again = relative_error(load_quantized(tmp_path / "int8", name)[0](*batch), network(*batch))
        assert again == pytest.approx(found["error"], rel=1e-5)
    quality = json.loads((tmp_path / "int8" / QUALITY).read_text())
    assert quality == {"metrics": metrics, "about": {"seed": 0}}
    with open(tmp_path / "layers.csv", newline="") as file:
        assert {row["variant"] for row in csv.DictReader(file)} == set(available_variants(tmp_path / "int8"))


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"max_error": 1e-4}, r"static_int8: prediction error .* is above quantize.max_error 0.0001; least exact"),
        ({"max_fid_increase": 1e-6}, r"increase of FID .* is above quantize.max_fid_increase"),
    ],
)
def test_a_variant_beyond_a_limit_is_refused_and_nothing_is_replaced(tmp_path, work, section, message):
    (tmp_path / "int8").mkdir()
    (tmp_path / "int8" / "old").write_text("still here")
    with pytest.raises(ConfigError, match=message):
        work(**section).run(tmp_path / "int8", tmp_path / "layers.csv", 1_000_000)
    assert [path.name for path in (tmp_path / "int8").iterdir()] == ["old"]
    assert (tmp_path / "layers.csv").is_file()  # the refusal is answered with it


def test_a_score_that_is_not_a_number_never_passes(tmp_path, work):
    stage = work(variants=["weight_int8"])
    good = stage.score
    stage.score = lambda net: good(net) if net is stage.network else {"fid": float("nan"), "kid": 0.0}
    with pytest.raises(ConfigError, match="nan"):
        stage.run(tmp_path / "int8", tmp_path / "layers.csv", 1_000_000)


def test_activation_bits_are_the_setting_or_what_is_safe_here(tmp_path, work):
    for bits in (7, 8):
        stage = work(variants=["static_int8"], activation_bits=bits)
        stage.run(tmp_path / str(bits), tmp_path / "layers.csv", 1_000_000)
        recipe = json.loads((tmp_path / str(bits) / "static_int8" / "recipe.json").read_text())
        assert recipe["details"] == {"activation_bits": bits}


def test_errors_are_told_apart_by_noise_level(network):
    class OnlyNoisyWrong(torch.nn.Module):
        def forward(self, x_t, log_snr, text, drop):
            exact = network(x_t, log_snr, text, drop)
            return exact * (1 + 0.5 * (log_snr < 0).float().view(-1, 1, 1, 1))

    found = prediction_errors(network, OnlyNoisyWrong(), [make_inputs(seed=1)])
    assert found["error_noisy"] == pytest.approx(0.5, rel=1e-4)
    assert found["error_clean"] == 0
    assert 0 < found["error"] < 0.5
