"""Samplers against diffusers' schedulers on the same network, and their rules."""

import pytest
import torch
from diffusers import (
    DDIMScheduler,
    DDPMScheduler,
    DPMSolverMultistepScheduler,
    FlowMatchEulerDiscreteScheduler,
    FlowMatchHeunDiscreteScheduler,
)
from torch import nn

from shift_diffusion.process.denoiser import Denoiser
from shift_diffusion.process.forward import to_x0
from shift_diffusion.process.samplers import (
    SAMPLERS,
    initial_noise,
    levels_at,
    sample,
    samplers_for,
    sampling_times,
    step_generators,
)
from shift_diffusion.process.schedules import make_schedule

TOLERANCE = {"rtol": 1e-4, "atol": 1e-4}
BETA_SCHEDULES = ["linear", "cosine", "cosine_beta", "hybrid"]
THEIR_PREDICTION = {"eps": "epsilon", "x0": "sample", "v": "v_prediction"}
SHAPE = (3, 8, 8)


class SmallNetwork(nn.Module):
    """A smooth function of picture and noise level. For eps and v near the truth, as a trained network's output is:
    an eps far off at alpha = 0.006 would test float32 rather than the sampler."""

    def __init__(self, prediction):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(4, 16, 3, padding=1), nn.SiLU(), nn.Conv2d(16, 3, 3, padding=1))
        self.prediction = prediction

    @torch.no_grad()
    def forward(self, x_t, log_snr, text=None, drop=None):
        log_snr = log_snr.to(x_t.dtype)
        self.to(x_t.dtype)
        level = (log_snr / 10).view(-1, 1, 1, 1).expand(len(x_t), 1, *x_t.shape[2:])
        picture = torch.tanh(self.layers(torch.cat([x_t, level], 1)))
        alpha, sigma = (torch.sigmoid(s * log_snr).sqrt().view(-1, 1, 1, 1) for s in (1, -1))
        if self.prediction == "eps":
            return (x_t - alpha * picture) / sigma
        return alpha * (x_t - alpha * picture) / sigma - sigma * picture if self.prediction == "v" else picture


def their_log_snr(scheduler, timestep):
    return torch.logit(scheduler.alphas_cumprod[int(timestep)].double()).float().view(1)


def in_float64(scheduler):
    """Their float32 tables in float64: the same algorithm, without what their rounding adds where alpha is tiny."""
    scheduler.betas = torch.tensor(scheduler.config.trained_betas, dtype=torch.float64)
    scheduler.alphas = 1 - scheduler.betas
    scheduler.alphas_cumprod = scheduler.alphas.cumprod(0)
    if isinstance(scheduler, DPMSolverMultistepScheduler):
        visited = scheduler.alphas_cumprod[scheduler.timesteps]
        scheduler.sigmas = torch.cat([((1 - visited) / visited).sqrt(), torch.zeros(1, dtype=torch.float64)])
    return scheduler


def timesteps_of(schedule, num_steps, spacing="uniform"):
    return (sampling_times(schedule, num_steps, spacing)[:-1] * schedule.num_train_timesteps).round().long() - 1


def ours(sampler, schedule, prediction, num_steps, dtype=torch.float32, **options):
    """The trajectory of x_t after each step."""
    trajectory = []
    denoise = Denoiser(SmallNetwork(prediction), schedule, prediction)
    result = sample(
        sampler,
        denoise,
        initial_noise([0], SHAPE).to(dtype),
        schedule,
        num_steps,
        generators=step_generators([0]),
        callback=lambda step, t, x_t, x_0: trajectory.append(x_t),
        **options,
    )
    return torch.stack([*trajectory[1:], result])


def theirs(scheduler, prediction, dtype=torch.float32, fresh=None, **step_options):
    """`fresh` draws the noise of a step; schedulers draw it in their network's dtype, which gives other numbers."""
    network, x, trajectory = SmallNetwork(prediction), initial_noise([0], SHAPE).to(dtype), []
    for timestep in scheduler.timesteps:
        output = network(x, their_log_snr(scheduler, timestep))
        noise = {} if fresh is None or timestep == scheduler.timesteps[-1] else {"variance_noise": fresh()}
        x = scheduler.step(output, timestep, x, **step_options, **noise).prev_sample
        trajectory.append(x)
    return torch.stack(trajectory)


@pytest.mark.parametrize("num_steps", [1, 10, 50])
@pytest.mark.parametrize("prediction", ["eps", "x0", "v"])
@pytest.mark.parametrize("name", BETA_SCHEDULES)
def test_ddpm_equals_diffusers(name, prediction, num_steps):
    schedule = make_schedule(name)
    scheduler = DDPMScheduler(
        trained_betas=schedule.betas.float().numpy(),
        prediction_type=THEIR_PREDICTION[prediction],
        variance_type="fixed_small",
        clip_sample=False,
    )
    scheduler.set_timesteps(timesteps=timesteps_of(schedule, num_steps).tolist())
    wanted = theirs(scheduler, prediction, generator=step_generators([0])[0])
    torch.testing.assert_close(ours("ddpm", schedule, prediction, num_steps), wanted, **TOLERANCE)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("num_steps", [1, 10, 50])
@pytest.mark.parametrize("prediction", ["eps", "x0", "v"])
@pytest.mark.parametrize("name", BETA_SCHEDULES)
def test_ddim_equals_diffusers(name, prediction, num_steps, eta):
    schedule = make_schedule(name)
    scheduler = DDIMScheduler(
        trained_betas=schedule.betas.float().numpy(),
        prediction_type=THEIR_PREDICTION[prediction],
        clip_sample=False,
        timestep_spacing="trailing",
    )
    scheduler.set_timesteps(num_steps)
    assert torch.equal(scheduler.timesteps, timesteps_of(schedule, num_steps))
    generator = step_generators([0])[0]
    wanted = theirs(
        in_float64(scheduler),
        prediction,
        torch.float64,
        (lambda: torch.randn(1, *SHAPE, generator=generator).double()) if eta else None,
        eta=eta,
    )
    found = ours("ddim", schedule, prediction, num_steps, torch.float64, eta=eta)
    torch.testing.assert_close(found, wanted, **TOLERANCE)


@pytest.mark.parametrize("spacing", ["uniform", "quadratic", "log_snr"])
@pytest.mark.parametrize("num_steps", [1, 10, 50])
@pytest.mark.parametrize("prediction", ["eps", "x0", "v"])
@pytest.mark.parametrize("name", BETA_SCHEDULES)
def test_dpmpp_2m_equals_diffusers(name, prediction, num_steps, spacing):
    schedule = make_schedule(name)
    scheduler = DPMSolverMultistepScheduler(
        trained_betas=schedule.betas.float().numpy(),
        prediction_type=THEIR_PREDICTION[prediction],
        algorithm_type="dpmsolver++",
        solver_order=2,
    )
    scheduler.set_timesteps(timesteps=timesteps_of(schedule, num_steps, spacing).tolist())
    wanted = theirs(in_float64(scheduler), prediction, torch.float64)
    found = ours("dpmpp_2m", schedule, prediction, num_steps, torch.float64, spacing=spacing)
    torch.testing.assert_close(found, wanted, **TOLERANCE)


@pytest.mark.parametrize("prediction", ["eps", "x0", "v"])
@pytest.mark.parametrize("name", ["linear", "cosine_beta", "hybrid"])
def test_parity_holds_in_float32_with_untouched_schedulers(name, prediction):
    schedule = make_schedule(name)
    common = {"trained_betas": schedule.betas.float().numpy(), "prediction_type": THEIR_PREDICTION[prediction]}
    solver = DPMSolverMultistepScheduler(algorithm_type="dpmsolver++", solver_order=2, **common)
    solver.set_timesteps(timesteps=timesteps_of(schedule, 10).tolist())
    ddim = DDIMScheduler(clip_sample=False, timestep_spacing="trailing", **common)
    ddim.set_timesteps(10)
    for sampler, scheduler in (("dpmpp_2m", solver), ("ddim", ddim)):
        torch.testing.assert_close(ours(sampler, schedule, prediction, 10), theirs(scheduler, prediction), **TOLERANCE)


@pytest.mark.parametrize("sampler", ["ddpm", "ddim"])
@pytest.mark.parametrize("prediction", ["x0", "v"])
def test_zero_terminal_snr_equals_diffusers(prediction, sampler):
    """Not dpmpp_2m: theirs starts at sigma = 4096 instead of pure noise (a bound of float16), ours at pure noise."""
    plain, schedule = make_schedule("linear"), make_schedule("linear", zero_terminal_snr=True)
    options = {"clip_sample": False, "timestep_spacing": "trailing", "rescale_betas_zero_snr": True}
    kind = DDIMScheduler if sampler == "ddim" else DDPMScheduler
    scheduler = kind(trained_betas=plain.betas.float().numpy(), prediction_type=THEIR_PREDICTION[prediction], **options)
    scheduler.set_timesteps(10)
    # what the network is told stays within our limit
    scheduler.alphas_cumprod = scheduler.alphas_cumprod.double().clamp(min=9.4e-14)
    wanted = theirs(scheduler, prediction, generator=step_generators([0])[0]).float()
    torch.testing.assert_close(ours(sampler, schedule, prediction, 10), wanted, **TOLERANCE)


@pytest.mark.parametrize("num_timesteps", [20, 4000])
@pytest.mark.parametrize("name", BETA_SCHEDULES)
def test_parity_with_few_and_many_timesteps(name, num_timesteps):
    schedule = make_schedule(name, num_timesteps, timestep_shift=2.0)
    scheduler = DPMSolverMultistepScheduler(
        num_train_timesteps=num_timesteps,
        trained_betas=schedule.betas.float().numpy(),
        prediction_type="v_prediction",
        algorithm_type="dpmsolver++",
        solver_order=2,
    )
    scheduler.set_timesteps(timesteps=timesteps_of(schedule, 20).tolist())
    torch.testing.assert_close(ours("dpmpp_2m", schedule, "v", 20), theirs(scheduler, "v"), **TOLERANCE)


# Flow matching


class FlowNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = SmallNetwork("x0")

    def forward(self, x_t, log_snr, text=None, drop=None):
        return x_t + self.inner(x_t, log_snr)


def our_flow(sampler, schedule, num_steps, spacing="uniform"):
    trajectory = []
    result = sample(
        sampler,
        Denoiser(FlowNetwork(), schedule, "velocity"),
        initial_noise([0], SHAPE),
        schedule,
        num_steps,
        spacing=spacing,
        callback=lambda step, t, x_t, x_0: trajectory.append(x_t),
    )
    return torch.stack([*trajectory[1:], result])


def their_flow(scheduler, schedule, times, per_step=1):
    network, x, trajectory = FlowNetwork(), initial_noise([0], SHAPE), []
    evaluated = times[:-1] if per_step == 1 else [times[0], *(t for t in times[1:-1] for _ in range(per_step))]
    for timestep, t in zip(scheduler.timesteps, evaluated, strict=True):
        x = scheduler.step(network(x, schedule.log_snr(t).float().view(1)), timestep, x).prev_sample
        trajectory.append(x)
    return torch.stack(trajectory)


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("spacing", ["uniform", "quadratic", "log_snr"])
@pytest.mark.parametrize("num_steps", [1, 4, 50])
def test_euler_equals_diffusers(num_steps, spacing, shift):
    schedule = make_schedule("flow", timestep_shift=shift)
    times = sampling_times(schedule, num_steps, spacing)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(sigmas=times[:-1].tolist())
    wanted = their_flow(scheduler, schedule, times)
    torch.testing.assert_close(our_flow("euler", schedule, num_steps, spacing), wanted, **TOLERANCE)
    # ddim without fresh noise is the same method, written for both families
    torch.testing.assert_close(our_flow("ddim", schedule, num_steps, spacing), wanted, **TOLERANCE)


@pytest.mark.parametrize("shift", [1.0, 3.0])
@pytest.mark.parametrize("num_steps", [1, 4, 50])
def test_heun_equals_diffusers(num_steps, shift):
    schedule = make_schedule("flow", timestep_shift=shift)
    times = sampling_times(schedule, num_steps)
    scheduler = FlowMatchHeunDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(num_steps)
    sigmas = schedule.sigma(times).float()  # theirs stop at 1/T instead of going to 0
    scheduler.sigmas = torch.cat([sigmas[:1], sigmas[1:-1].repeat_interleave(2), sigmas[-1:]])
    scheduler.timesteps = torch.arange(len(scheduler.sigmas) - 1, 0, -1) * 1.0
    scheduler._begin_index = 0
    wanted = their_flow(scheduler, schedule, times, per_step=2)
    torch.testing.assert_close(our_flow("heun", schedule, num_steps)[-1], wanted[-1], **TOLERANCE)


@pytest.mark.parametrize("spacing", ["uniform", "quadratic", "log_snr"])
@pytest.mark.parametrize("num_steps", [1, 4, 12, 50])
def test_dpmpp_2m_for_flow_equals_diffusers(num_steps, spacing):
    schedule = make_schedule("flow", timestep_shift=3.0)
    times = sampling_times(schedule, num_steps, spacing)
    scheduler = DPMSolverMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, algorithm_type="dpmsolver++", solver_order=2
    )
    scheduler.set_timesteps(num_steps)
    scheduler.sigmas = schedule.sigma(times).float()
    scheduler.timesteps = torch.arange(num_steps, 0, -1)
    scheduler._begin_index = 0
    wanted = their_flow(scheduler, schedule, times)
    torch.testing.assert_close(our_flow("dpmpp_2m", schedule, num_steps, spacing), wanted, **TOLERANCE)


# Rules


@pytest.mark.parametrize("spacing", ["uniform", "quadratic", "log_snr"])
@pytest.mark.parametrize("num_steps", [1, 2, 3, 7, 50, 999, 1000])
def test_times_of_a_discrete_schedule(num_steps, spacing):
    """Case 19: the last timestep first, each once, the clean picture last, for any number of steps."""
    for name in BETA_SCHEDULES:
        schedule = make_schedule(name, timestep_shift=2.0)
        times = sampling_times(schedule, num_steps, spacing)
        assert times.shape == (num_steps + 1,)
        assert (times[0], times[-1]) == (1, 0)
        assert (times.diff() < 0).all()
        torch.testing.assert_close(times * 1000, (times * 1000).round(), rtol=0, atol=1e-9)


@pytest.mark.parametrize("spacing", ["uniform", "quadratic", "log_snr"])
def test_times_of_flow(spacing):
    schedule = make_schedule("flow", timestep_shift=3.0)
    for num_steps in (1, 2, 50, 2000):
        times = sampling_times(schedule, num_steps, spacing)
        assert times.shape == (num_steps + 1,)
        assert (times[0], times[-1]) == (1, 0)
        assert (times.diff() < 0).all()


def test_levels_end_clean_for_every_family():
    for name in ("linear", "flow"):
        schedule = make_schedule(name)
        levels = levels_at(schedule, sampling_times(schedule, 4))
        assert levels[-1] == (0.0, 1.0, 0.0)


@pytest.mark.parametrize(("num_timesteps", "num_steps"), [(50, 60), (1000, 1001)])
def test_more_steps_than_timesteps_are_refused(num_timesteps, num_steps):
    with pytest.raises(ValueError, match=f"{num_steps} steps are more than the {num_timesteps} timesteps"):
        sampling_times(make_schedule("linear", num_timesteps), num_steps)


def run(sampler, schedule, **options):
    return sample(sampler, lambda x, t: x * 0.5, initial_noise([0, 1], SHAPE), make_schedule(schedule), 4, **options)


@pytest.mark.parametrize(
    ("sampler", "schedule", "options", "message"),
    [
        ("euler", "linear", {}, "allowed: ddpm, ddim, dpmpp_2m"),
        ("heun", "cosine", {}, "allowed: ddpm, ddim, dpmpp_2m"),
        ("ddpm", "flow", {}, "allowed: ddim, dpmpp_2m, euler, heun"),
        ("plms", "flow", {}, "ddim, dpmpp_2m, euler, heun"),
        ("ddim", "linear", {"eta": 1.5}, "eta is 1.5"),
        ("dpmpp_2m", "linear", {"eta": 0.5}, "only ddim"),
        ("ddpm", "linear", {}, "2 generators, one a picture; got none"),
        ("ddim", "linear", {"eta": 0.5, "generators": step_generators([0])}, "got 1"),
        ("ddim", "linear", {"spacing": "karras"}, "uniform, quadratic, log_snr"),
    ],
)
def test_refusals(sampler, schedule, options, message):
    with pytest.raises(ValueError, match=message):
        run(sampler, schedule, **options)


def test_no_steps_are_refused():
    with pytest.raises(ValueError, match="num_steps is 0"):
        sampling_times(make_schedule("flow"), 0)


@pytest.mark.parametrize("name", ["linear", "flow"])
def test_a_picture_does_not_depend_on_its_batch(name):
    seeds, schedule = [11, 5, 7], make_schedule(name)
    denoise = Denoiser(SmallNetwork("x0"), schedule, "x0")
    for sampler in samplers_for(schedule.family):
        together = sample(sampler, denoise, initial_noise(seeds, SHAPE), schedule, 6, generators=step_generators(seeds))
        alone = [
            sample(sampler, denoise, initial_noise([s], SHAPE), schedule, 6, generators=step_generators([s]))
            for s in seeds
        ]
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-5, atol=1e-5)


def test_noise_is_a_function_of_the_seed():
    assert torch.equal(initial_noise([3, 4], SHAPE)[1], initial_noise([4], SHAPE)[0])
    assert initial_noise([3], SHAPE).dtype == torch.float32
    start = initial_noise([3], SHAPE)[0]
    step = torch.randn(*SHAPE, generator=step_generators([3])[0])
    correlation = torch.corrcoef(torch.stack([start.flatten(), step.flatten()]))[0, 1]
    assert correlation.abs() < 0.25
    assert not torch.equal(start, step)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_same_seeds_same_bits_and_float_times(sampler):
    schedule = "linear" if "vp" in SAMPLERS[sampler][1] else "flow"
    first, second = (run(sampler, schedule, generators=step_generators([0, 1])) for _ in range(2))
    assert torch.equal(first, second)


def test_eta_one_with_all_steps_is_ancestral_sampling():
    schedule = make_schedule("linear", 100)
    ancestral, ddim = ours("ddpm", schedule, "v", 100), ours("ddim", schedule, "v", 100, eta=1.0)
    torch.testing.assert_close(ancestral, ddim, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_callback_sees_every_step_and_the_last_estimate_is_the_picture(sampler):
    seen = []
    schedule = "linear" if "vp" in SAMPLERS[sampler][1] else "flow"
    result = run(sampler, schedule, generators=step_generators([0, 1]), callback=lambda *step: seen.append(step))
    assert [(step, t) for step, t, *_ in seen] == [(0, 1.0), (1, 0.75), (2, 0.5), (3, 0.25)]
    assert torch.equal(seen[-1][3], result)


def test_wrong_direction_is_visible():
    """Case 20: a velocity of the opposite sign doesn't give the data, so a mix-up can't pass the known answers."""
    schedule, wanted = make_schedule("flow"), torch.full((1, *SHAPE), 0.5)
    noise = initial_noise([0], SHAPE)

    def network(sign):
        def predict(x_t, log_snr, text, drop):
            sigma = schedule.sigma(schedule.time_of(log_snr.double())).float().view(-1, 1, 1, 1)
            return sign * (x_t - wanted) / sigma

        return predict

    right, wrong = (
        sample("euler", Denoiser(network(sign), schedule, "velocity"), noise, schedule, 20) for sign in (1, -1)
    )
    torch.testing.assert_close(right, wanted, rtol=0, atol=1e-4)
    assert (wrong - wanted).abs().mean() > 0.5
    assert torch.equal(to_x0("velocity", noise - wanted, noise, 0.0, 1.0), noise - (noise - wanted))
