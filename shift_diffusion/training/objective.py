"""The pure loss: a batch in, a number to minimize and its parts out. All that DDP or FSDP wraps."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from shift_diffusion.data.images import to_float
from shift_diffusion.process.forward import add_noise
from shift_diffusion.process.losses import DenoisingLoss
from shift_diffusion.training.batches import Batch

NUM_QUARTILES = 4


class Objective(nn.Module):
    """Denoising loss of a network, plus the penalty on its shift offsets.

    Args:
        penalty: weight of `network.shift_penalty()`.
        autocast: makes the context that the network runs in.
    """

    def __init__(
        self, network: nn.Module, loss: DenoisingLoss, penalty: float, autocast: Callable[[], AbstractContextManager]
    ):
        super().__init__()
        self.network = network
        self._loss, self._penalty, self._autocast = loss, penalty, autocast

    def forward(self, batch: Batch, share: float) -> tuple[Tensor, Tensor]:
        """Loss of a micro-batch as a share of its group, and its statistics.

        Args:
            share: 1 / images of the whole group (times the number of processes, whose gradients are averaged): the
                losses of all micro-batches of a group then sum up to the mean over its images, however it is cut.

        Returns:
            A scalar, and (1 + 2 * NUM_QUARTILES,) float32: summed loss, summed loss and number of images per quartile
            of the noise level. The penalty is in the scalar only.
        """
        x_0 = to_float(batch.images)
        x_t = add_noise(x_0, batch.eps, batch.alpha, batch.sigma)
        with self._autocast():
            output = self.network(x_t, batch.log_snr, batch.text, batch.drop)
        per_sample, _ = self._loss(output, x_0, batch.eps, x_t, batch.alpha, batch.sigma)
        loss = (per_sample * batch.weight).sum() * share
        if self._penalty:
            loss = loss + self._penalty * self.network.shift_penalty() * batch.weight.sum() * share
        return loss, _statistics(per_sample.detach(), batch)


def _statistics(per_sample: Tensor, batch: Batch) -> Tensor:
    in_quartile = nn.functional.one_hot(batch.quartile, NUM_QUARTILES) * batch.weight[:, None]
    # where(), not a product: 0 times a non-finite loss would blame all quartiles
    losses = torch.where(in_quartile > 0, per_sample[:, None], 0.0)
    return torch.cat([losses.sum()[None], losses.sum(0), in_quartile.sum(0)])
