"""Samplers on Gaussian data with the exact denoiser: the answer is known in closed form."""

import math
from itertools import pairwise

import pytest
import torch
from gaussian_data import COVARIANCE, MEAN, error, exact_denoiser, exact_flow, sampler_map

from shift_diffusion.process.samplers import SAMPLERS, initial_noise, sample, samplers_for, step_generators
from shift_diffusion.process.schedules import make_schedule

SCHEDULES = {
    "linear": lambda t, **o: make_schedule("linear", t, **o),
    "zero-snr": lambda t, **o: make_schedule("linear", t, zero_terminal_snr=True, **o),
    "cosine": lambda t, **o: make_schedule("cosine", t, **o),
    "cosine_beta": lambda t, **o: make_schedule("cosine_beta", t, **o),
    "hybrid": lambda t, **o: make_schedule("hybrid", t, **o),
    "flow": lambda t, **o: make_schedule("flow", t, **o),
    "hybrid-flow": lambda t, **o: make_schedule("hybrid", t, family="flow", **o),
}
ORDER = {"ddim": 1, "euler": 1, "dpmpp_2m": 2, "heun": 2}
DETERMINISTIC = [
    (schedule, sampler)
    for schedule, build in SCHEDULES.items()
    for sampler in samplers_for(build(20).family)
    if sampler in ORDER
]


def affine(sampler, schedule, num_steps, spacing="uniform"):
    denoise = exact_denoiser(schedule)
    return sampler_map(lambda x: sample(sampler, denoise, x, schedule, num_steps, spacing=spacing))


@pytest.mark.parametrize(("name", "sampler"), DETERMINISTIC)
def test_mean_and_covariance(name, sampler):
    """The image of the standard normal under the sampler's map, without sampling error."""
    schedule = SCHEDULES[name](1000)
    for spacing in ("uniform", "quadratic", "log_snr"):
        matrix, offset = affine(sampler, schedule, 50 if ORDER[sampler] == 2 else 500, spacing)
        assert (offset - MEAN).abs().max() < 0.01
        assert (matrix @ matrix.T - COVARIANCE).abs().max() < 0.01


@pytest.mark.parametrize(("name", "sampler"), DETERMINISTIC)
def test_order_of_convergence(name, sampler):
    """In the spacing of the papers' theorems: equal steps of lambda for the second-order methods (Lu et al. 2022)."""
    schedule = SCHEDULES[name](4000, timestep_shift=1.5)
    wanted = exact_flow(schedule)
    errors = [error(affine(sampler, schedule, steps, "log_snr"), wanted) for steps in (20, 40, 80)]
    orders = [math.log2(coarse / fine) for coarse, fine in pairwise(errors)]
    assert all(order > 0.95 * ORDER[sampler] for order in orders), (errors, orders)


@pytest.mark.parametrize(("name", "sampler"), DETERMINISTIC)
def test_first_order_in_uniform_time_too(name, sampler):
    schedule = SCHEDULES[name](4000)
    wanted = exact_flow(schedule)
    coarse, fine = (error(affine(sampler, schedule, steps), wanted) for steps in (10, 160))
    assert math.log2(coarse / fine) / 4 > 0.9


@pytest.mark.parametrize("name", SCHEDULES)
def test_one_to_fifty_steps_are_finite_for_every_sampler_and_size(name):
    noise = initial_noise(range(2), (3, 4, 4))
    for num_timesteps in (20, 50, 4000):
        schedule = SCHEDULES[name](num_timesteps, timestep_shift=2.0)
        denoise = exact_denoiser(schedule)
        limit = min(50, num_timesteps if schedule.family == "vp" else 50)
        for sampler in samplers_for(schedule.family):
            for num_steps in (1, 2, 3, 7, limit):
                for spacing in ("uniform", "quadratic", "log_snr"):
                    pictures = sample(
                        sampler,
                        denoise,
                        noise,
                        schedule,
                        num_steps,
                        spacing=spacing,
                        generators=step_generators([0, 1]),
                    )
                    assert pictures.isfinite().all(), (sampler, num_timesteps, num_steps, spacing)
                    assert pictures.abs().max() < 5


@pytest.mark.slow
@pytest.mark.parametrize("num_timesteps", [20, 100, 1000, 4000])
@pytest.mark.parametrize("name", SCHEDULES)
def test_error_falls_from_one_to_fifty_steps(name, num_timesteps):
    """Every number of steps from 1 to 50: the error falls at least as 1/steps.

    Not from each to the next: before the asymptotic regime a second-order method's error changes sign.
    """
    schedule = SCHEDULES[name](num_timesteps)
    wanted = exact_flow(schedule)
    most = min(50, num_timesteps if schedule.family == "vp" else 50)
    for sampler in samplers_for(schedule.family):
        if sampler not in ORDER:
            continue
        errors = [error(affine(sampler, schedule, steps, "quadratic"), wanted) for steps in range(1, most + 1)]
        assert all(later <= 3 * errors[0] / steps for steps, later in enumerate(errors, start=1)), (sampler, errors)


def moments(pictures):
    pixels = pictures.double().transpose(0, 1).flatten(1)
    return pixels.mean(1), torch.cov(pixels)


@pytest.mark.parametrize("name", ["linear", "cosine", "cosine_beta", "hybrid", "zero-snr"])
@pytest.mark.parametrize("options", [{"name": "ddpm"}, {"name": "ddim", "eta": 1.0}, {"name": "ddim", "eta": 0.5}])
def test_stochastic_samplers_reach_mean_and_covariance(name, options):
    """16,384 independent pixels: the standard error of a variance is 1.1 % of it."""
    schedule = SCHEDULES[name](200)
    noise, generators = initial_noise(range(4), (3, 64, 64)), step_generators(range(4))
    options = dict(options)
    pictures = sample(
        options.pop("name"), exact_denoiser(schedule), noise, schedule, 200, generators=generators, **options
    )
    mean, covariance = moments(pictures)
    assert (mean - MEAN).abs().max() < 0.03
    assert (covariance - COVARIANCE).abs().max() < 0.03


def test_two_points():
    """Case 20: data of two pictures; each sample ends on one of them, about half on each."""
    points = torch.stack([torch.full((3,), -0.6), torch.full((3,), 0.8)]).double()

    def denoiser(schedule):
        def denoise(x_t, t):
            alpha, sigma = float(schedule.alpha(t)), float(schedule.sigma(t))
            # each picture is one constant color, so all its pixels speak for the same point
            distances = (x_t.double()[:, None] - alpha * points[None, :, :, None, None]).square().sum((2, 3, 4))
            weights = torch.softmax(-distances / (2 * sigma**2), 1)
            return (weights @ points)[..., None, None].expand_as(x_t).to(x_t)

        return denoise

    noise = initial_noise(range(200), (3, 2, 2))
    for name in ("linear", "flow"):
        schedule = SCHEDULES[name](1000)
        for sampler in samplers_for(schedule.family):
            ends = sample(
                sampler, denoiser(schedule), noise, schedule, 100, generators=step_generators(range(200))
            ).double()
            nearest = torch.stack([(ends - p[:, None, None]).abs().amax((1, 2, 3)) for p in points])
            assert nearest.amin(0).quantile(0.95) < 1e-3, sampler
            assert 0.35 < (nearest.argmin(0) == 0).double().mean() < 0.65


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_black_pictures_come_out_black(sampler):
    """Case 19: with few steps nothing grey is left over."""
    name = "linear" if "vp" in SAMPLERS[sampler][1] else "flow"
    noise = initial_noise([0], (3, 4, 4))
    for num_steps in (1, 3, 7, 999, 1000):
        pictures = sample(
            sampler,
            lambda x_t, t: torch.full_like(x_t, -1.0),
            noise,
            SCHEDULES[name](1000),
            num_steps,
            generators=step_generators([0]),
        )
        assert torch.equal(pictures, torch.full_like(noise, -1.0))
