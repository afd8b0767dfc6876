import pytest
import torch

from shift_diffusion.process.forward import add_noise, target, to_eps, to_prediction, to_x0, x0_gain
from shift_diffusion.process.schedules import make_schedule

PREDICTIONS = ["eps", "x0", "v", "velocity"]


def case(family):
    generator = torch.Generator().manual_seed(0)
    x_0, eps = torch.randn(2, 5, 3, 4, 4, generator=generator, dtype=torch.float64)
    schedule = make_schedule("linear" if family == "vp" else "flow")
    t = torch.tensor([0.02, 0.3, 0.5, 0.8, 0.99], dtype=torch.float64)
    return x_0, eps, schedule.alpha(t), schedule.sigma(t)


@pytest.mark.parametrize("family", ["vp", "flow"])
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_targets_convert_back_in_float64(prediction, family):
    x_0, eps, alpha, sigma = case(family)
    x_t = add_noise(x_0, eps, alpha, sigma)
    output = target(prediction, x_0, eps, alpha, sigma)
    torch.testing.assert_close(to_x0(prediction, output, x_t, alpha, sigma), x_0, rtol=0, atol=1e-9)
    torch.testing.assert_close(to_eps(prediction, output, x_t, alpha, sigma), eps, rtol=0, atol=1e-9)
    torch.testing.assert_close(to_prediction(prediction, x_0, x_t, alpha, sigma), output, rtol=0, atol=1e-9)


@pytest.mark.parametrize("family", ["vp", "flow"])
@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_any_output_is_one_picture_and_one_noise(prediction, family):
    """Estimates of x_0 and eps from a wrong output must still add up to x_t."""
    x_0, eps, alpha, sigma = case(family)
    x_t, output = add_noise(x_0, eps, alpha, sigma), torch.randn_like(x_0)
    again = add_noise(
        to_x0(prediction, output, x_t, alpha, sigma), to_eps(prediction, output, x_t, alpha, sigma), alpha, sigma
    )
    torch.testing.assert_close(again, x_t, rtol=0, atol=1e-9)


@pytest.mark.parametrize("prediction", PREDICTIONS)
def test_x0_gain_is_the_derivative(prediction):
    x_0, eps, alpha, sigma = case("vp")
    x_t = add_noise(x_0, eps, alpha, sigma)
    difference = to_x0(prediction, x_0 + 1, x_t, alpha, sigma) - to_x0(prediction, x_0, x_t, alpha, sigma)
    torch.testing.assert_close(difference.abs()[:, 0, 0, 0], x0_gain(prediction, alpha, sigma))


def test_velocity_is_the_time_derivative_towards_noise():
    """Case 20: one direction of time, one sign."""
    x_0, eps, *_ = case("flow")
    schedule, width = make_schedule("flow"), 1e-6
    before, after = (
        add_noise(x_0, eps, float(schedule.alpha(t)), float(schedule.sigma(t))) for t in (0.5, 0.5 + width)
    )
    torch.testing.assert_close((after - before) / width, target("velocity", x_0, eps, 0.5, 0.5), rtol=0, atol=1e-6)


def test_float_and_vector_coefficients_agree_and_keep_float32():
    x_0, eps = torch.randn(2, 4, 3, 2, 2)
    noised = add_noise(x_0, eps, torch.full((4,), 0.6, dtype=torch.float64), torch.full((4,), 0.8))
    assert noised.dtype == torch.float32
    torch.testing.assert_close(noised, add_noise(x_0, eps, 0.6, 0.8))


def test_unknown_prediction_lists_the_known():
    x = torch.zeros(1, 3, 2, 2)
    for call in (to_x0, to_eps):
        with pytest.raises(ValueError, match="eps, x0, v, velocity"):
            call("score", x, x, 0.5, 0.5)
    with pytest.raises(ValueError, match="eps, x0, v, velocity"):
        target("score", x, x, 0.5, 0.5)
