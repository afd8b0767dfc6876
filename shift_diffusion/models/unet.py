"""The nested UNet: a core network, and around it one outer level for every doubling of the resolution.

The inner network gets the pooled picture at its own, matched noise level (`matched_noise`); its prediction, repeated
2x2, is the low-frequency part of the outer one, to which the outer level adds detail. The detail starts at zero, so a
network just grown is already a correct, blurry denoiser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from shift_diffusion.models import matched_noise
from shift_diffusion.models.conditioning import Context, TextCondition, TextProjection
from shift_diffusion.models.levels import Core, Outer, Stack
from shift_diffusion.models.shift import SpatialShift2d
from shift_diffusion.models.spec import NetworkSpec

if TYPE_CHECKING:
    from shift_diffusion.config import Params


class NestedUNet(nn.Module):
    """Predicts eps, x_0, v or the flow velocity of a noised picture; see `forward`.

    Args:
        spec: shape of the network. Initial weights are drawn from torch's global generator.
    """

    def __init__(self, spec: NetworkSpec):
        super().__init__()
        self.spec = spec
        self.channels_last = True
        out_channels = 3 * max(spec.num_bins, 1)
        conditioned = spec.style != "none"
        self.text = (
            TextProjection(spec.style, spec.text_dim, spec.embedding_dim, spec.max_tokens) if conditioned else None
        )
        self.core = Core(spec, out_channels)
        self.outer = nn.ModuleList()
        inner = self.core
        for level, reach in zip(spec.outer, spec.reach[len(spec.widths) :], strict=True):
            self.outer.append(Outer(spec, level, reach, (inner.width, inner.patch), out_channels))
            inner = self.outer[-1]

    def forward(
        self, x_t: Tensor, log_snr: Tensor, text: TextCondition | None = None, drop: Tensor | None = None
    ) -> Tensor:
        """Prediction for a noised picture.

        Args:
            x_t: (B, 3, H, W) float32, alpha x_0 + sigma eps.
            log_snr: (B,) float32, log(alpha^2 / sigma^2); or (1,) when the whole batch has one noise level (faster).
            text: encoded captions; None = the null embedding for every sample.
            drop: (B,) bool; True = this sample gets the null embedding.

        Returns:
            (B, 3, H, W) float32 prediction; with intensity bins (B, 3 * num_bins, H, W) logits, where channel
            c * num_bins + k is bin k of color c.
        """
        if text is not None and self.text is None:
            raise ValueError("this network is unconditional (conditioning.style none), but a text condition was given")
        log_snr = _one_level_if_equal(log_snr.float())
        context = None if self.text is None else self.text(text, drop, len(x_t))
        if self.channels_last:
            x_t = x_t.contiguous(memory_format=torch.channels_last)
        output, _ = self._predict(len(self.outer), x_t, log_snr, context, None)
        return output

    def _predict(
        self, depth: int, x_t: Tensor, log_snr: Tensor, context: Context | None, injected: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Prediction (float32) and finest features of the network with `depth` outer levels."""
        if depth == 0:
            output, features = self.core(x_t, log_snr, context, injected)
            return output.float(), features
        family = self.spec.family
        x_inner, log_snr_inner = matched_noise.pool(x_t, log_snr, family)

        def inner(features: Tensor) -> tuple[Tensor, Tensor]:
            return self._predict(depth - 1, x_inner, log_snr_inner, context, features)

        detail, coarse, features = self.outer[depth - 1](x_t, log_snr, context, injected, inner)
        if not self.spec.num_bins:  # the bins' logits say the same of a pixel at either resolution
            coarse = matched_noise.low_frequency(coarse, x_inner, log_snr, family, self.spec.prediction)
        return matched_noise.upsample(coarse) + detail.float(), features

    def set_gradient_checkpointing(self, enabled: bool) -> None:
        """Recompute each block's activations in the backward pass: less memory, one more forward pass."""
        for module in self.modules():
            if isinstance(module, Stack):
                module.gradient_checkpointing = enabled

    def _shifts(self) -> dict[str, tuple[SpatialShift2d, nn.Module]]:
        """Name of each level, coarsest first, to its shift operator and the embedding that drives its gate."""
        if not self.spec.shift:
            return {}
        core = {
            f"core_{index}": (level.shift, self.core.embedding)
            for index, level in reversed(list(enumerate(self.core.levels)))
        }
        return core | {f"outer_{i}": (outer.level.shift, outer.embedding) for i, outer in enumerate(self.outer)}

    def shift_penalty(self) -> Tensor:
        """Mean over levels of the mean square offset, in units of each level's reach; unweighted, a scalar."""
        penalties = [shift.penalty() for shift, _ in self._shifts().values()]
        return torch.stack(penalties).mean() if penalties else torch.zeros(())

    @torch.no_grad()
    def shift_report(self) -> dict[str, float]:
        """Per level the largest |offset| at any noise level, relative to the reach: 1 = at the bound."""
        device = self.core.stem.weight.device
        log_snr = torch.linspace(-8, 8, 17, device=device)
        return {
            name: shift.relative_offsets(embedding.noise_level(log_snr)).abs().max().item()
            for name, (shift, embedding) in self._shifts().items()
        }


def _one_level_if_equal(log_snr: Tensor) -> Tensor:
    """(B,) to (1,) when sampling at one noise level: embeddings and shift kernels are then made once for the batch.

    Only where looking at the values costs nothing (CPU) and nothing is traced (a branch on data can't be).
    """
    if torch.is_grad_enabled() or torch.compiler.is_compiling() or log_snr.device.type != "cpu" or len(log_snr) == 1:
        return log_snr
    return log_snr[:1] if bool((log_snr == log_snr[0]).all()) else log_snr


def network_config(params: Params, stage: int, text_dim: int | None = None) -> dict:
    """JSON-able description of the network of a stage; `network_from_config` builds it."""
    return NetworkSpec.from_params(params, stage, text_dim).to_dict()


def network_from_config(config: dict) -> NestedUNet:
    """A network with fresh weights. Raises ConfigError when keys are missing or unknown."""
    return NestedUNet(NetworkSpec.from_dict(config)).to(memory_format=torch.channels_last)


def build_network(params: Params, stage: int, text_dim: int | None = None) -> NestedUNet:
    """The network of stage 1..3 (k - 1 outer levels) with fresh weights and the runtime's memory switches.

    Args:
        text_dim: width of the prepared text embeddings; may be left out for the embedded encoder.
    """
    network = NestedUNet(NetworkSpec.from_params(params, stage, text_dim))
    network.channels_last = params.runtime.channels_last
    network.set_gradient_checkpointing(params.runtime.gradient_checkpointing)
    return network.to(memory_format=torch.channels_last) if network.channels_last else network


def grow(network: NestedUNet, params: Params) -> NestedUNet:
    """The next stage's network: the given one's weights, unchanged, inside a fresh outer level.

    Its first output is the low-frequency prediction of `network` repeated 2x2. Raises ValueError when params describe
    another inner network: no weight of it may be lost or begin anew, and it must predict the same.
    """
    stage = len(network.spec.outer) + 2
    grown = build_network(params, stage, network.spec.text_dim or None)
    if not isinstance(network, NestedUNet):
        raise TypeError(f"can only grow a NestedUNet, not {type(network).__name__}")
    inner, outer, added = network.state_dict(), grown.state_dict(), f"outer.{stage - 2}."
    wrong = [name for name, value in inner.items() if name not in outer or outer[name].shape != value.shape]
    wrong += [name for name in outer if name not in inner and not name.startswith(added)]
    if wrong:
        raise ValueError(f"params describe another inner network; these weights don't fit: {', '.join(wrong)}")
    for name in ("family", "prediction"):
        old, new = getattr(network.spec, name), getattr(grown.spec, name)
        if old != new:
            raise ValueError(f"params describe another inner network; its {name} is {old}, not {new}")
    grown.load_state_dict(outer | inner)
    return grown
