"""The account: every convolution and linear layer is quantized or listed with a reason."""

import csv

import pytest
import torch
from torch import nn

from shift_diffusion.config import ConfigError
from shift_diffusion.quantization import dynamic_int8, static_int8, weight_int8
from shift_diffusion.quantization.layers import counts, weight_layers, write_layers_csv


class Odd(nn.Module):
    """One of everything that makes converters stumble; `twice` is one module in two places."""

    def __init__(self):
        super().__init__()
        self.grouped = nn.Conv2d(8, 8, 3, padding=1, groups=4, bias=False)
        self.strided = nn.Conv2d(8, 16, 3, 2, 1)
        self.transposed = nn.ConvTranspose2d(16, 8, 2, 2)
        self.mirrored = nn.Conv2d(8, 8, 3, padding=1, padding_mode="reflect")
        self.same = nn.Conv2d(8, 8, 3, padding="same")
        self.twice = nn.Conv2d(8, 8, 1)
        self.line = nn.Conv1d(8, 8, 3, padding=1)
        self.unused = nn.Linear(8, 8)
        self.out = nn.Linear(8, 4)

    def forward(self, x, log_snr=None, text=None, drop=None):
        h = self.transposed(self.strided(self.grouped(x)))
        h = self.twice(torch.relu(self.twice(self.same(self.mirrored(h)))))
        return self.out(self.line(h.flatten(2)).mean(-1))


def odd_inputs():
    return [(torch.randn(4, 8, 8, 8), None, None, None)]


@pytest.fixture
def odd():
    torch.manual_seed(0)
    return Odd().eval().requires_grad_(False)


def test_every_layer_is_int8_or_has_a_reason(odd):
    converted = static_int8.convert(odd, odd_inputs(), [], 7)
    assert {row.layer for row in converted.rows} == {name for name, _ in weight_layers(odd)}
    assert all(row.int8 != bool(row.reason) for row in converted.rows)
    reasons = {row.layer: row.reason for row in converted.rows if not row.int8}
    assert set(reasons) == {"transposed", "mirrored", "same", "line", "unused"}
    assert "ConvTranspose2d" in reasons["transposed"]
    assert "reflect" in reasons["mirrored"]
    assert "same" in reasons["same"]
    assert "never called" in reasons["unused"]
    x = odd_inputs()[0]
    assert (converted.network(*x) - odd(*x)).norm() / odd(*x).norm() < 0.1


def test_a_module_in_two_places_is_replaced_in_both(odd):
    odd.again = odd.twice
    converted = static_int8.convert(odd, odd_inputs(), [], 7)
    assert converted.network.again is converted.network.twice
    assert [row.layer for row in converted.rows if row.layer in ("again", "twice")] == ["twice"]


def test_dynamic_names_every_convolution_it_passes_over(odd):
    converted = dynamic_int8.convert(odd, [])
    skipped = [row for row in converted.rows if row.kind == "Conv2d" and not row.reason.startswith("padding")]
    assert len(skipped) == 3
    assert all("no dynamic Conv2d" in row.reason for row in skipped)
    assert [row.layer for row in converted.rows if row.int8] == ["unused", "out"]


def test_both_kinds_of_the_project_network_are_quantized(network, batches):
    found = counts(static_int8.convert(network, batches, [], 7).rows)
    assert found["int8_Conv2d"] == found["all_Conv2d"] > 20
    assert found["int8_Linear"] == found["all_Linear"] > 20


def test_keep_float_keeps_what_the_patterns_name(network, batches):
    converted = static_int8.convert(network, batches, ["core.stem", "*head.conv"], 7)
    kept = {row.layer for row in converted.rows if not row.int8}
    assert kept == {"core.stem", "core.head.conv", "outer.0.head.conv"}
    assert all("keep_float" in row.reason for row in converted.rows if not row.int8)
    assert isinstance(converted.network.core.stem, nn.Conv2d)


def test_a_pattern_that_names_nothing_is_refused(network):
    with pytest.raises(ConfigError, match="'core.stam' names no layer"):
        weight_int8.convert(network, ["core.stam"])


@pytest.mark.parametrize("recipe", [static_int8, dynamic_int8, weight_int8])
def test_nothing_quantized_is_an_error(recipe, network, batches):
    extra = (batches,) if recipe is static_int8 else ()
    with pytest.raises(ConfigError, match="quantized none of"):
        recipe.convert(network, *extra, ["*"], *((7,) if extra else ()))


def test_the_table_has_a_row_for_every_layer_and_variant(tmp_path, odd):
    rows = {
        "static_int8": static_int8.convert(odd, odd_inputs(), [], 7).rows,
        "weight_int8": weight_int8.convert(odd, []).rows,
    }
    write_layers_csv(tmp_path / "layers.csv", rows)
    with open(tmp_path / "layers.csv", newline="") as file:
        table = list(csv.DictReader(file))
    assert len(table) == 2 * len(list(weight_layers(odd)))
    strided = next(row for row in table if row["layer"] == "strided")
    assert (strided["kind"], strided["shape"], strided["int8"]) == ("Conv2d", "16x8x3x3", "yes")
    assert 0 < float(strided["error"]) < 0.1
