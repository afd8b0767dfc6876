"""A network compiled by Inductor with frozen weights: one program for every batch size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from shift_diffusion.models.conditioning import TextCondition
from shift_diffusion.quantization.capability import has_cpp_compiler
from shift_diffusion.quantization.int8_layers import StaticInt8
from shift_diffusion.quiet import quiet_libraries
from shift_diffusion.runtime import has_fast_bfloat16

NO_COMPILER = "not available: no C++ compiler"


class CompiledNetwork:
    """Called like the network it was made from; the first call compiles, which takes about a minute.

    Frozen weights are constants of the program: Inductor packs them for oneDNN and, around `StaticInt8` layers, turns
    PT2E's quantize / dequantize operators into int8 kernels. All inputs are brought to one form (captions padded to
    the longest, one noise level if it is the same for all), so that calls that differ in those share a program.

    What stays float between int8 layers (norms, activations, attention) is computed in bfloat16 where the CPU is fast
    at it: half the bytes to move, and far below int8's own error.

    Args:
        network: in eval mode, on the CPU.
        config: of its folder: "network" gives the longest caption and the width of its tokens.
    """

    def __init__(self, network: nn.Module, config: dict[str, Any]):
        if not has_cpp_compiler():
            raise RuntimeError(NO_COMPILER)
        int8 = any(isinstance(layer, StaticInt8) for layer in network.modules())
        if int8:
            register_program_operators()
        self._bfloat16 = int8 and has_fast_bfloat16(torch.device("cpu"))
        shape = config["network"]
        self._max_tokens, self._text_dim = shape["max_tokens"], shape["text_dim"]
        self._conditional = shape["style"] != "none"
        self._program = torch.compile(network)

    @torch.no_grad()
    def __call__(
        self, x_t: Tensor, log_snr: Tensor, text: TextCondition | None = None, drop: Tensor | None = None
    ) -> Tensor:
        """As `NestedUNet.forward`; float32."""
        x_t = x_t.float().contiguous(memory_format=torch.channels_last)
        log_snr = log_snr.float()
        if bool((log_snr == log_snr[0]).all()):
            log_snr = log_snr[:1].clone()  # a view of B elements would be another input than one of 1 to the compiler
        inputs = (x_t, log_snr, *self._condition(text, drop, len(x_t)))
        for value in inputs:
            _let_batch_vary(value, len(x_t))
        freezing = torch._inductor.config.patch(freezing=True)  # as an option of compile, Dynamo wouldn't see it
        with freezing, torch.autocast("cpu", torch.bfloat16, enabled=self._bfloat16):
            return self._program(*inputs).float()

    def _condition(
        self, text: TextCondition | None, drop: Tensor | None, count: int
    ) -> tuple[TextCondition | None, Tensor | None]:
        if not self._conditional:
            return None, None
        drop = torch.zeros(count, dtype=torch.bool) if drop is None else drop.clone()
        if text is None:
            shape = (count, self._max_tokens)
            nothing = TextCondition(
                torch.zeros(*shape, self._text_dim),
                torch.zeros(shape, dtype=torch.bool),
                torch.zeros(count, self._text_dim),
            )
            return nothing, torch.ones(count, dtype=torch.bool)
        missing = self._max_tokens - text.tokens.shape[1]
        tokens = nn.functional.pad(text.tokens, (0, 0, 0, missing)).contiguous()
        return TextCondition(tokens, nn.functional.pad(text.mask, (0, missing)), text.pooled.contiguous()), drop


def _let_batch_vary(value: Any, count: int) -> None:
    """Marks the first dimension as dynamic, whatever it is at the first call."""
    if isinstance(value, tuple):
        for part in value:
            _let_batch_vary(part, count)
    elif isinstance(value, Tensor) and len(value) == count > 1:
        torch._dynamo.mark_dynamic(value, 0)


def register_program_operators() -> None:
    """Makes PT2E's quantize and dequantize operators known, with Inductor's int8 lowering of them."""
    with quiet_libraries():
        import torchao.quantization.pt2e.quantizer.x86_inductor_quantizer  # noqa: F401 - registers on import
