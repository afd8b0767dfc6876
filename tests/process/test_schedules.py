import math

import pytest
import torch
from diffusers import DDPMScheduler, FlowMatchEulerDiscreteScheduler

from shift_diffusion.process.samplers import sampling_times
from shift_diffusion.process.schedules import (
    LOG_SNR_LIMIT,
    coefficients,
    draw_times,
    make_schedule,
    schedule_of,
    shift_for_tokens,
)

BETA_SCHEDULES = ["linear", "cosine", "cosine_beta", "hybrid"]
SCHEDULES = [*BETA_SCHEDULES, "flow", "hybrid-flow"]
SIZES = [20, 21, 50, 1000, 4000]


def build(name, num_timesteps=1000, **options):
    if name == "hybrid-flow":
        return make_schedule("hybrid", num_timesteps, family="flow", **options)
    return make_schedule(name, num_timesteps, **options)


@pytest.mark.parametrize("zero_snr", [False, True])
@pytest.mark.parametrize("name", BETA_SCHEDULES)
def test_tables_equal_diffusers(name, zero_snr):
    plain, ours = make_schedule(name), make_schedule(name, zero_terminal_snr=zero_snr)
    theirs = DDPMScheduler(trained_betas=plain.betas.float().numpy(), rescale_betas_zero_snr=zero_snr)
    torch.testing.assert_close(ours.alphas_cumprod.float(), theirs.alphas_cumprod, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(ours.betas.float(), theirs.betas, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("name", "theirs"), [("linear", "linear"), ("cosine", "squaredcos_cap_v2")])
def test_well_known_tables_equal_diffusers_own(name, theirs):
    theirs = DDPMScheduler(beta_schedule=theirs).alphas_cumprod
    torch.testing.assert_close(make_schedule(name).alphas_cumprod.float(), theirs, rtol=1e-4, atol=1e-7)


def test_hybrid_of_one_is_linear_to_the_bit():
    for num_timesteps in SIZES:
        linear, hybrid = make_schedule("linear", num_timesteps), make_schedule("hybrid", num_timesteps, hybrid_mix=1.0)
        assert torch.equal(linear.betas, hybrid.betas)
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    assert torch.equal(make_schedule("flow").sigma(t), build("hybrid-flow", hybrid_mix=1.0).sigma(t))


def test_betas_by_hand():
    t = 250
    assert make_schedule("cosine_beta").betas[t] == pytest.approx(1e-4 + 0.0199 * (1 - math.cos(math.pi * 0.25)) / 2)
    level = 0.3 * t / 999 + 0.7 * (1 - math.cos(math.pi / 2 * t / 999))
    assert make_schedule("hybrid", hybrid_mix=0.3).betas[t] == pytest.approx(1e-4 + 0.0199 * level)
    assert make_schedule("linear", 4000).betas[-1] == pytest.approx(0.005)


@pytest.mark.parametrize("shift", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("num_timesteps", SIZES)
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_finite_falling_and_consistent(name, num_timesteps, shift):
    schedule = build(name, num_timesteps, timestep_shift=shift)
    t = torch.arange(num_timesteps + 1, dtype=torch.float64) / num_timesteps
    log_snr, alpha, sigma = schedule.log_snr(t), schedule.alpha(t), schedule.sigma(t)
    assert log_snr.dtype == alpha.dtype == sigma.dtype == torch.float64
    assert log_snr.isfinite().all()
    assert (log_snr.diff() < 0).all()
    power = 2 if schedule.family == "vp" else 1
    torch.testing.assert_close(alpha**power + sigma**power, torch.ones_like(t))
    for found, wanted in zip(coefficients(log_snr, schedule.family), (alpha, sigma), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=math.exp(-LOG_SNR_LIMIT / 2))
    assert alpha[0] == pytest.approx(1)
    assert sigma[0] == pytest.approx(0, abs=1e-6)
    if schedule.family == "vp":
        assert ((schedule.betas > 0) & (schedule.betas < 1)).all()
        torch.testing.assert_close((1 - schedule.betas).cumprod(0), schedule.alphas_cumprod, rtol=1e-9, atol=1e-12)
    else:
        assert (alpha[-1], sigma[-1], sigma[0]) == (0, 1, 0)


@pytest.mark.parametrize("name", BETA_SCHEDULES)
def test_timesteps_give_their_own_table_entry(name):
    for num_timesteps in (49, 1000):
        schedule = make_schedule(name, num_timesteps)
        index = torch.arange(num_timesteps)
        alpha = schedule.alpha(schedule.timestep(index))
        torch.testing.assert_close(alpha, schedule.alphas_cumprod.sqrt(), rtol=1e-12, atol=1e-12)
        assert torch.equal(schedule.snap(schedule.timestep(index)), schedule.timestep(index))


@pytest.mark.parametrize("name", BETA_SCHEDULES)
def test_zero_terminal_snr(name):
    plain, schedule = make_schedule(name), make_schedule(name, zero_terminal_snr=True, timestep_shift=2.0)
    unshifted = make_schedule(name, zero_terminal_snr=True)
    assert schedule.alphas_cumprod[-1] == unshifted.alphas_cumprod[-1] == 0
    assert unshifted.alphas_cumprod[0] == pytest.approx(plain.alphas_cumprod[0].item(), abs=1e-12)
    assert schedule.log_snr(1.0) == -LOG_SNR_LIMIT
    assert schedule.predictions == ("x0", "v")


@pytest.mark.parametrize("name", SCHEDULES)
def test_shift_is_one_constant_in_log_snr(name):
    t = torch.linspace(0.01, 0.95, 50, dtype=torch.float64)
    plain, shifted = build(name), build(name, timestep_shift=3.0)
    plain, shifted = plain.snap(t), (plain.log_snr(plain.snap(t)), shifted.log_snr(plain.snap(t)))
    torch.testing.assert_close(shifted[0] - shifted[1], torch.full_like(t, 2 * math.log(3)), rtol=1e-9, atol=1e-9)
    assert build(name, timestep_shift=1.0) == build(name)


def test_flow_shift_equals_the_published_formula_and_diffusers():
    times = sampling_times(make_schedule("flow"), 50)
    for shift in (1.0, 3.0):
        theirs = FlowMatchEulerDiscreteScheduler(shift=shift)
        theirs.set_timesteps(sigmas=times[:-1].tolist())
        ours = make_schedule("flow", timestep_shift=shift).sigma(times)
        torch.testing.assert_close(ours.float(), theirs.sigmas, rtol=0, atol=1e-6)
        torch.testing.assert_close(ours, shift * times / (1 + (shift - 1) * times))


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_training_and_sampling_read_one_table(shift):
    """Case 18: asking twice gives the same table, all steps give the table made at build time."""
    schedule = make_schedule("flow", 100, timestep_shift=shift)
    for num_steps in (4, 50, 100):
        times = sampling_times(schedule, num_steps)
        assert torch.equal(times, sampling_times(schedule, num_steps))
        assert (times[0], times[-1]) == (1, 0)
        assert (schedule.sigma(times)[0], schedule.sigma(times)[-1]) == (1, 0)
    trained = schedule.sigma(draw_times(1 - torch.arange(100) / 100, "uniform", schedule))
    torch.testing.assert_close(schedule.sigma(times[:-1]), trained)
    discrete = make_schedule("linear", 100, timestep_shift=shift)
    alphas = discrete.alpha(sampling_times(discrete, 100)[:-1])
    torch.testing.assert_close(alphas, discrete.alphas_cumprod.sqrt().flip(0))


def test_shift_for_tokens():
    assert shift_for_tokens(256) == pytest.approx(math.exp(0.5))
    assert shift_for_tokens(4096) == pytest.approx(math.exp(1.15))


class _Section:
    def __init__(self, **values):
        self.__dict__.update(values)


def test_schedule_of_sections():
    process = _Section(
        schedule="hybrid", num_train_timesteps=50, hybrid_mix=0.3, zero_terminal_snr=False, prediction="v", family="vp"
    )
    stage = _Section(timestep_shift="tokens", resolution=32)
    schedule = schedule_of(process, stage, patch=2)
    wanted = make_schedule("hybrid", 50, timestep_shift=shift_for_tokens(256), hybrid_mix=0.3)
    assert schedule == wanted
    assert torch.equal(schedule.betas, wanted.betas)


@pytest.mark.parametrize("name", SCHEDULES)
def test_settings_rebuild_the_schedule(name):
    schedule = build(name, 200, timestep_shift=2.0, hybrid_mix=0.4)
    again = make_schedule(**schedule.settings())
    t = torch.rand(20, dtype=torch.float64)
    assert again == schedule
    assert torch.equal(again.log_snr(t), schedule.log_snr(t))


@pytest.mark.parametrize("name", SCHEDULES)
def test_time_of_inverts_log_snr(name):
    schedule = build(name, timestep_shift=2.0)
    t = torch.linspace(0.002, 0.998, 40, dtype=torch.float64)
    torch.testing.assert_close(schedule.time_of(schedule.log_snr(t)), t, rtol=0, atol=1e-9)


def test_schedules_take_floats_and_any_shape():
    for name in SCHEDULES:
        schedule = build(name)
        assert schedule.alpha(0.5).shape == ()
        assert schedule.log_snr(torch.rand(2, 3)).shape == (2, 3)


@pytest.mark.parametrize("time_sampling", ["uniform", "logit_normal"])
def test_drawn_times(time_sampling):
    u = torch.tensor([0.0, 1e-300, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    t = draw_times(u, time_sampling)
    assert ((t > 0) & (t <= 1) & t.isfinite()).all()
    assert (t.diff() >= 0).all()
    assert t[3] == pytest.approx(0.5)
    snapped = draw_times(u, time_sampling, make_schedule("linear", 50)) * 50
    torch.testing.assert_close(snapped, snapped.round())
    assert (snapped.min(), snapped.max()) == (1, 50)


def test_logit_normal_is_normal_in_the_logit():
    u = (torch.arange(10000, dtype=torch.float64) + 0.5) / 10000
    logit = torch.logit(draw_times(u, "logit_normal"))
    assert logit.mean().item() == pytest.approx(0, abs=1e-6)
    assert logit.std().item() == pytest.approx(1, abs=2e-3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make_schedule("sigmoid"), "linear, cosine, cosine_beta, hybrid, flow"),
        (lambda: make_schedule("linear", 19), "from 20 timesteps"),
        (lambda: make_schedule("hybrid", hybrid_mix=1.2), r"1.2; it must lie in \[0, 1\]"),
        (lambda: make_schedule("flow", timestep_shift=0.0), "timestep_shift is 0.0"),
        (lambda: make_schedule("flow", timestep_shift=math.nan), "timestep_shift is nan"),
        (lambda: make_schedule("flow", zero_terminal_snr=True), "zero_terminal_snr"),
        (lambda: make_schedule("linear", family="flow"), "has no family 'flow'"),
        (lambda: draw_times(torch.rand(2), "normal"), "uniform, logit_normal"),
        (lambda: coefficients(torch.zeros(1), "ve"), "vp, flow"),
        (lambda: make_schedule("linear").timestep(1000), "0 to 999"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
