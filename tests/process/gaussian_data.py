"""Data of which everything is known: each pixel's three channels are Gaussian, pixels independent."""

import functools

import torch

MEAN = torch.tensor([0.4, -0.3, 0.1], dtype=torch.float64)
AXES = torch.linalg.qr(torch.tensor([[1.0, 0.4, 0.1], [-0.3, 1.0, 0.5], [0.2, -0.1, 1.0]], dtype=torch.float64)).Q
VARIANCES = torch.tensor([0.04, 0.16, 0.36], dtype=torch.float64)
COVARIANCE = AXES @ VARIANCES.diag() @ AXES.T


def along_axes(factors):
    """(3,) factors along the axes of the data -> the (3, 3) matrix that applies them."""
    return AXES @ torch.as_tensor(factors, dtype=torch.float64).diag() @ AXES.T


def exact_denoiser(schedule):
    """E[x_0 | x_t], in closed form."""

    @functools.cache
    def parts(t):
        alpha, sigma = schedule.alpha(t), schedule.sigma(t)
        gain = along_axes(alpha * VARIANCES / (alpha**2 * VARIANCES + sigma**2))
        return gain, (MEAN - alpha * gain @ MEAN)[:, None, None]

    def denoise(x_t, t):
        gain, offset = parts(t)
        return torch.einsum("ij,bjhw->bihw", gain.to(x_t), x_t) + offset.to(x_t)

    return denoise


def exact_flow(schedule):
    """(matrix (3, 3), offset (3,)) of the solution of the probability flow from t = 1 to t = 0."""
    alpha, sigma = schedule.alpha(1.0), schedule.sigma(1.0)
    matrix = along_axes((VARIANCES / (alpha**2 * VARIANCES + sigma**2)).sqrt())
    return matrix, MEAN - matrix @ (alpha * MEAN)


def sampler_map(run):
    """(matrix, offset) of an affine map run((B, 3, 1, 1) float64) -> (B, 3, 1, 1), read off exactly."""
    probes = torch.cat([torch.zeros(1, 3), torch.eye(3)]).double()[..., None, None]
    offset, *columns = run(probes).squeeze(-1, -2)
    return torch.stack([column - offset for column in columns], 1), offset


def error(found, wanted):
    """Largest difference of two affine maps."""
    return max((a - b).abs().max().item() for a, b in zip(found, wanted, strict=True))
