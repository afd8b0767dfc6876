"""Compiled programs: one for all batch sizes, int8 kernels inside, the numbers of the uncompiled network."""

import pytest
import torch

from shift_diffusion.quantization import static_int8
from shift_diffusion.quantization.capability import has_cpp_compiler, has_int8_kernels, safe_activation_bits
from shift_diffusion.quantization.compiled import CompiledNetwork
from tests.quantization.conftest import make_config, make_inputs, make_network

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not has_cpp_compiler(), reason="not available: no C++ compiler"),
]


def check_all_forms_of_call(compiled, network, tolerance):
    """Several batch sizes, one noise level or many, with and without captions."""
    for count, log_snr in ((8, 0.5), (3, 0.5), (5, -2.0), (1, 0.5)):
        x_t, levels, text, _ = make_inputs(count=count, log_snr=log_snr, seed=count)
        for condition in (text, None):
            exact = network(x_t, levels, condition)
            assert static_int8.relative_error(compiled(x_t, levels, condition), exact) < tolerance


@torch.no_grad()
def test_a_compiled_float_network_computes_the_same():
    network = make_network()
    check_all_forms_of_call(CompiledNetwork(network, make_config(network)), network, 1e-4)


@torch.no_grad()
@pytest.mark.skipif(not has_int8_kernels(), reason="no oneDNN int8 kernels in this build")
def test_a_compiled_int8_network_uses_int8_kernels_and_computes_the_same():
    from torch._dynamo.utils import counters

    network = make_network()
    converted = static_int8.convert(network, [make_inputs(seed=1)], [], safe_activation_bits())
    counters.clear()
    compiled = CompiledNetwork(converted.network, make_config(network))
    check_all_forms_of_call(compiled, converted.network, 0.05)  # a rounding at a tie can go the other way
    packed = counters["inductor"]
    convolutions = sum(row.int8 and row.kind == "Conv2d" for row in converted.rows)
    assert packed["qconv_weight_prepack_matcher_count"] >= convolutions
    assert packed["qlinear_weight_prepack_matcher_count"] > 0
