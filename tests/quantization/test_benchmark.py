"""Benchmarks that don't lie: the device is waited for, first calls are left out, slower is called slower."""

import json
import subprocess
import sys
import time

import pytest

from shift_diffusion.benchmark import Benchmarking, as_table, draw_chart, environment_of, flat, verdict
from shift_diffusion.benchmark_worker import MIN_REPEATS, summarize, timed, waiting_share
from shift_diffusion.files import write_json
from shift_diffusion.models.saving import save_network
from shift_diffusion.quantization.quantize import QUALITY
from shift_diffusion.quantization.saving import save_quantized
from shift_diffusion.runtime import set_up
from tests.conftest import ROOT
from tests.quantization.conftest import make_config
from tests.quantization.test_recipes import convert


def test_work_that_the_device_does_after_the_call_is_counted():
    """Case 27: a call that returns at once and a device that is busy for 20 ms."""
    seconds = timed(lambda: None, lambda: time.sleep(0.02), repeats=3, budget_s=1)
    assert len(seconds) == 3
    assert min(seconds) >= 0.02


def test_the_first_call_is_left_out():
    calls = []

    def call():
        calls.append(None)
        time.sleep(0.2 if len(calls) == 1 else 0.001)

    seconds = timed(call, lambda: None, repeats=4, budget_s=1)
    assert len(calls) == 5
    assert min(seconds) < 0.1
    assert len(seconds) == 4


def test_what_the_device_still_does_of_the_first_call_is_left_out():
    """The other half of case 27: it must be idle before the clock starts, too."""
    ends_at = [0.0]

    def call():
        work = 0.3 if not ends_at[0] else 0.01
        ends_at[0] = max(ends_at[0], time.perf_counter()) + work

    seconds = timed(call, lambda: time.sleep(max(0.0, ends_at[0] - time.perf_counter())), repeats=3, budget_s=1)
    assert 0.01 <= min(seconds) <= max(seconds) < 0.2


def test_the_budget_ends_repeats_but_never_below_the_least():
    assert len(timed(lambda: time.sleep(0.01), lambda: None, repeats=1000, budget_s=0.05)) < 20
    assert len(timed(lambda: time.sleep(0.01), lambda: None, repeats=1000, budget_s=0)) == MIN_REPEATS


def test_median_and_spread():
    found = summarize([0.010, 0.011, 0.012, 0.013, 0.5], batch_size=6)
    assert found["latency_ms"] == pytest.approx(12)
    assert found["pictures_per_s"] == pytest.approx(500)
    assert found["repeats"] == 5
    assert found["latency_spread_ms"] > 0


def test_slower_is_called_slower():
    said = verdict("dynamic_int8", {"batch1": 0.5, "batch16": 1.5, "batch32": 1.01})
    assert "batch1: 0.50x, SLOWER than float32" in said
    assert "batch16: 1.50x, faster than float32" in said
    assert "batch32: 1.01x, as fast as float32" in said


def test_nothing_is_claimed_from_a_busy_machine():
    assert waiting_share((100, 100), (200, 400)) == 0.75
    assert waiting_share(None, (200, 400)) is None
    said = verdict("static_int8", {"batch1": 16.0}, waited=0.75)
    assert "not comparable" in said
    assert "75%" in said
    assert "faster" not in said


@pytest.fixture
def model(tmp_path, network, batches):
    """A saved model with its int8 variants, as the stages leave them."""
    save_network(tmp_path / "model", network, make_config(network))
    for name in ("static_int8", "weight_int8"):
        save_quantized(tmp_path / "int8", name, convert(name, network, batches), make_config(network))
    scores = {name: {"fid": 10.0, "kid": 0.1} for name in ("float32", "static_int8", "weight_int8")}
    write_json(tmp_path / "int8" / QUALITY, {"metrics": scores, "about": {"num_samples": 4}})
    return tmp_path


def test_each_variant_is_measured_with_all_that_the_numbers_depend_on(model, tiny_params, network):
    variants = ["static_int8_uncompiled", "weight_int8"]
    params = tiny_params({"benchmark": {"batch_sizes": [1, 3], "repeats": 3, "variants": variants}})
    environment = set_up(params.runtime)
    found = Benchmarking(model / "model", model / "int8", params.benchmark, params.runtime).run(environment)
    assert set(found) == {"float32", *variants, "environment"}  # what the others are compared with is always there
    for name in ("float32", *variants):
        values = found[name]
        assert set(values["latency_ms"]) == set(values["latency_spread_ms"]) == {"batch1", "batch3"}
        assert values["peak_memory_mb"] > 50
        assert values["file_mb"] > 0
        assert (values["device"], values["precision"]) == ("cpu", "float32" if name == "float32" else "int8")
        assert values["fid"] == 10.0
    assert found["float32"]["speedup"] == {"batch1": 1.0, "batch3": 1.0}
    assert found["float32"]["difference"] == 0
    assert 0 < found["static_int8_uncompiled"]["difference"] < 0.1
    where = found["environment"]
    assert {"device", "threads", "cpu", "vector_units", "int8_unit", "versions"} <= set(where)
    assert where["versions"]["torch"]
    json.dumps(found, allow_nan=False)
    numbers = flat(found)
    assert numbers["float32/speedup/batch3"] == 1
    assert all(isinstance(value, (int, float)) for value in numbers.values())
    draw_chart(found, model / "chart.png")
    assert (model / "chart.png").read_bytes()[:4] == b"\x89PNG"
    assert where["int8_unit"] in as_table(found)


def test_without_a_compiler_the_compiled_variants_say_so(model, tiny_params):
    code = (
        "import sys; from shift_diffusion.benchmark_worker import unavailable; "
        "print([unavailable(name) for name in ('compiled', 'static_int8', 'static_int8_uncompiled', 'float32')])"
    )
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env={"PATH": "/nonexistent", "HOME": str(model)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    said = "not available: no C++ compiler"
    assert result.stdout.strip() == str([said, said, None, None])


def test_the_environment_names_the_cpu(tiny_params):
    found = environment_of(set_up(tiny_params().runtime))
    assert found["int8_unit"] in ("none", "amx_int8", "avx512_vnni", "avx_vnni")
    assert found["threads"] == 1
