"""From a saved model to pictures: the one road that evaluate, benchmark, the registry and the command line take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from shift_diffusion.config import ConfigError, Text
from shift_diffusion.data.images import to_uint8
from shift_diffusion.data.text import load_text_encoder
from shift_diffusion.models.conditioning import TextCondition
from shift_diffusion.models.saving import load_network
from shift_diffusion.process.denoiser import Denoiser
from shift_diffusion.process.samplers import check_sampler, initial_noise, sample, sampling_times, step_generators
from shift_diffusion.process.schedules import NoiseSchedule, make_schedule


class Pipeline:
    """A network with its schedule and its text encoder. Picture k depends on seed k only, not on the batch it is in.

    Args:
        network: callable (x_t, log_snr, text, drop) -> prediction: a NestedUNet or a quantized one.
        config: of the model folder (models/saving.py): "process", "text", "resolution".
    """

    def __init__(self, network: Callable[..., Tensor], config: dict[str, Any], device: torch.device | str = "cpu"):
        process = dict(config["process"])
        self.network, self.config, self.device = network, config, torch.device(device)
        self.prediction: str = process.pop("prediction")
        self.schedule: NoiseSchedule = make_schedule(**process)
        self.resolution: int = config["resolution"]
        self._encoder: Any = None

    @classmethod
    def load(
        cls, folder: str | Path, device: torch.device | str = "cpu", weights: str = "model.safetensors"
    ) -> Pipeline:
        """Loads a folder written by `save_network`. Raises ConfigError when it can't be used."""
        network, config = load_network(folder, weights)
        return cls(network.to(device, memory_format=torch.channels_last), config, device)

    @property
    def conditional(self) -> bool:
        return self.config["text"]["encoder"] != "none"

    def encode(self, prompts: Sequence[str]) -> TextCondition:
        """Text condition of the prompts on the CPU; the encoder is loaded at the first call."""
        if not self.conditional:
            raise ConfigError(["prompt: this model was trained without captions (text.encoder: none)"])
        if self._encoder is None:
            self._encoder = load_text_encoder(Text(**self.config["text"]))
        return self._encoder.encode(list(prompts))

    @torch.no_grad()
    def sample(
        self,
        prompts: Sequence[str] | TextCondition | None,
        seeds: Sequence[int],
        *,
        sampler: str,
        num_steps: int,
        guidance_scale: float = 1.0,
        negative_prompt: str | None = None,
        spacing: str = "uniform",
        batch_size: int = 64,
        callback: Callable[[int], None] | None = None,
        on_step: Callable[[int, float, Tensor, Tensor], None] | None = None,
    ) -> Tensor:
        """Draws one picture per seed.

        Args:
            prompts: one per seed, already encoded or as text; None = no condition.
            callback: gets the number of finished pictures after each batch.
            on_step: gets (step, t, x_t, x_0 estimate) within each batch.

        Returns:
            uint8 (N, 3, R, R) on the CPU.

        Raises:
            ConfigError: a sampler, number of steps or spacing that doesn't fit what the model was trained on.
        """
        if not len(seeds):
            raise ValueError("seeds: at least one is needed")
        self._check(sampler, num_steps, spacing)
        text = self._condition(prompts, len(seeds))
        negative = self.encode([negative_prompt]) if negative_prompt else None
        pictures = []
        for start in range(0, len(seeds), batch_size):
            part = slice(start, start + batch_size)
            batch = [int(seed) for seed in seeds[part]]
            denoise = Denoiser(
                self.network, self.schedule, self.prediction, self._to_device(text, part), guidance_scale,
                negative=self._repeat(negative, len(batch)), clip=True,
            )  # fmt: skip
            noise = initial_noise(batch, (3, self.resolution, self.resolution))
            noise = noise.to(self.device).contiguous(memory_format=torch.channels_last)
            generators = step_generators(batch)
            x_0 = sample(
                sampler, denoise, noise, self.schedule, num_steps,
                spacing=spacing, generators=generators, callback=on_step,
            )  # fmt: skip
            pictures.append(to_uint8(x_0).cpu())
            if callback:
                callback(len(batch))
        return torch.cat(pictures).contiguous()

    def _check(self, sampler: str, num_steps: int, spacing: str) -> None:
        try:
            check_sampler(sampler, self.schedule)
            sampling_times(self.schedule, num_steps, spacing)
        except ValueError as error:
            raise ConfigError([str(error)]) from error

    def _condition(self, prompts: Sequence[str] | TextCondition | None, count: int) -> TextCondition | None:
        if prompts is None:
            return None
        text = prompts if isinstance(prompts, TextCondition) else self.encode(prompts)
        if len(text.pooled) != count:
            raise ValueError(f"{len(text.pooled)} prompts for {count} seeds; give one each")
        return text

    def _to_device(self, text: TextCondition | None, part: slice) -> TextCondition | None:
        return None if text is None else TextCondition(*(value[part].to(self.device) for value in text))

    def _repeat(self, text: TextCondition | None, count: int) -> TextCondition | None:
        if text is None:
            return None
        return TextCondition(*(value.to(self.device).expand(count, *value.shape[1:]) for value in text))
