"""The identities of growth by matched noise level, on numbers whose answer is known."""

import math

import pytest
import torch
from torch.nn import functional as F

from shift_diffusion.models import matched_noise
from shift_diffusion.process import forward, schedules

PAIRS = [("vp", "eps"), ("vp", "x0"), ("vp", "v"), ("flow", "x0"), ("flow", "velocity"), ("flow", "eps")]


@pytest.mark.parametrize("family", matched_noise.FAMILIES)
def test_coefficients_are_the_process_own(family):
    log_snr = torch.linspace(-30, 30, 61, dtype=torch.float64)
    for ours, theirs in zip(
        matched_noise.coefficients(log_snr, family), schedules.coefficients(log_snr, family), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=0)


@pytest.mark.parametrize(("family", "prediction"), PAIRS)
def test_exact_inner_prediction_gives_the_block_means_of_the_exact_outer_one(family, prediction):
    torch.manual_seed(0)
    log_snr = torch.tensor([-12.0, -3.0, 0.0, 2.0, 12.0], dtype=torch.float64)
    x_0, eps = torch.randn(2, 5, 3, 8, 8, dtype=torch.float64)
    alpha, sigma = (c.view(-1, 1, 1, 1) for c in matched_noise.coefficients(log_snr, family))
    x_inner, inner_log_snr = matched_noise.pool(alpha * x_0 + sigma * eps, log_snr, family)

    alpha_in, sigma_in = (c.view(-1, 1, 1, 1) for c in matched_noise.coefficients(inner_log_snr, family))
    x_0_in, eps_in = F.avg_pool2d(x_0, 2), 2 * F.avg_pool2d(eps, 2)
    torch.testing.assert_close(x_inner, alpha_in * x_0_in + sigma_in * eps_in)

    inner = forward.target(prediction, x_0_in, eps_in, alpha_in, sigma_in)
    outer = forward.target(prediction, x_0, eps, alpha, sigma)
    low = matched_noise.low_frequency(inner, x_inner, log_snr, family, prediction)
    torch.testing.assert_close(low, F.avg_pool2d(outer, 2))


def test_pooled_noise_is_unit_noise_at_the_matched_level():
    torch.manual_seed(0)
    noise = torch.randn(64, 3, 32, 32)
    x_inner, log_snr = matched_noise.pool(noise, torch.full((64,), -60.0), "flow")
    assert x_inner.std() == pytest.approx(1, abs=0.01)
    assert log_snr[0] == pytest.approx(-60 + math.log(4))


@pytest.mark.parametrize(("family", "prediction"), PAIRS)
@pytest.mark.parametrize("log_snr", [-200.0, -60.0, 60.0, 200.0])
def test_nothing_is_singular_at_the_ends(family, prediction, log_snr):
    x_t, level = torch.randn(2, 3, 4, 4), torch.full((2,), log_snr)
    x_inner, _ = matched_noise.pool(x_t, level, family)
    low = matched_noise.low_frequency(torch.randn_like(x_inner), x_inner, level, family, prediction)
    assert low.isfinite().all()
    assert low.abs().max() < 20


@pytest.mark.parametrize(("family", "prediction"), [("vp", "velocity"), ("flow", "v"), ("flow", "noise")])
def test_predictions_of_another_family_are_refused(family, prediction):
    with pytest.raises(ValueError, match="does not belong"):
        matched_noise.low_frequency(
            torch.zeros(1, 3, 2, 2), torch.zeros(1, 3, 2, 2), torch.zeros(1), family, prediction
        )


def test_unknown_family_is_refused():
    with pytest.raises(ValueError, match="not one of"):
        matched_noise.coefficients(torch.zeros(1), "ve")
