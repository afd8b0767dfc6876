"""From a saved model to pictures: the model's own file says which samplers fit (case 20)."""

import pytest

from shift_diffusion.config import ConfigError
from shift_diffusion.models.saving import load_network, save_network
from shift_diffusion.models.unet import build_network, network_config
from shift_diffusion.process.schedules import schedule_of
from shift_diffusion.sampling import Pipeline

KINDS = {
    "flow": {"schedule": "flow", "prediction": "velocity"},
    "linear": {"schedule": "linear", "prediction": "eps", "num_train_timesteps": 50},
}


@pytest.fixture(params=KINDS)
def saved(request, tmp_path, tiny_params):
    """(kind, folder) of a model as a stage writes it."""
    params = tiny_params({"process": KINDS[request.param]})
    process = {**schedule_of(params.process, params.train.stage_1).settings(), "prediction": params.process.prediction}
    config = {"network": network_config(params, 1), "process": process, "text": params.text.model_dump()}
    save_network(tmp_path / "model", build_network(params, 1), {**config, "resolution": 8})
    return request.param, tmp_path / "model"


def draw(folder, sampler, num_steps=2, **settings):
    return Pipeline.load(folder).sample(None, [0, 1], sampler=sampler, num_steps=num_steps, **settings)


FITTING = {"flow": ("ddim", "dpmpp_2m", "euler", "heun"), "linear": ("ddpm", "ddim", "dpmpp_2m")}


@pytest.mark.parametrize("sampler", ["ddpm", "ddim", "dpmpp_2m", "euler", "heun", "plms"])
def test_a_sampler_for_the_other_objective_is_refused(saved, sampler):
    kind, folder = saved
    if sampler in FITTING[kind]:
        assert draw(folder, sampler).shape == (2, 3, 8, 8)
    else:
        with pytest.raises(ConfigError, match=f"sampler: '{sampler}' .*; allowed: {', '.join(FITTING[kind])}"):
            draw(folder, sampler)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"num_steps": 0}, "num_steps is 0"), ({"spacing": "karras"}, "uniform, quadratic, log_snr")],
)
def test_bad_settings_are_refused_before_the_network_runs(saved, settings, message):
    with pytest.raises(ConfigError, match=message):
        draw(saved[1], "ddim", **settings)


def test_more_steps_than_the_model_has_timesteps_are_refused(saved):
    """Case 19; flow matching has no such limit."""
    kind, folder = saved
    if kind == "linear":
        with pytest.raises(ConfigError, match="60 steps are more than the 50 timesteps"):
            draw(folder, "ddim", 60)
    else:
        assert len(draw(folder, "ddim", 60)) == 2


def test_the_prediction_of_the_other_kind_is_refused(saved):
    kind, folder = saved
    network, config = load_network(folder)
    (prediction,) = (process["prediction"] for name, process in KINDS.items() if name != kind)
    config["process"]["prediction"] = prediction
    with pytest.raises(ValueError, match=f"prediction '{prediction}' with schedule {kind}"):
        Pipeline(network, config).sample(None, [0], sampler="ddim", num_steps=2)
