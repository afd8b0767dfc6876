"""Names and values any MLflow server takes."""

import pytest

from shift_diffusion.tracking.names import (
    NAME_LIMIT,
    VALUE_LIMIT,
    clean_name,
    clean_names,
    flatten,
    shorten,
    value_text,
)


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("train.stage-1.lr", "train.stage-1.lr"),
        ("learning rate (initial)", "learning_rate_initial_"),
        ("größe[0]", "gr_e_0_"),
        ("loss/quartile 1", "loss/quartile_1"),
        ("/a//b/", "a/b"),
        ("../up", "_/up"),
        ("", "_"),
        (3, "3"),
    ],
)
def test_one_rule_for_names(name, cleaned):
    assert clean_name(name) == cleaned


def test_long_names_stay_different():
    one, other = clean_name("x" * 300 + "1"), clean_name("x" * 300 + "2")
    assert len(one) == len(other) == NAME_LIMIT
    assert one != other


def test_names_that_would_collide_are_told_apart():
    cleaned = clean_names(["a b", "a_b", "a(b"])
    assert len(set(cleaned.values())) == 3


def test_nested_values_are_flattened_and_lists_stay_whole():
    flat = flatten({"loss": {"mse": 1.0, "extra": {}}, "widths": [1, 2], "path": None})
    assert flat == {"loss.mse": 1.0, "loss.extra": {}, "widths": [1, 2], "path": None}


@pytest.mark.parametrize(
    ("value", "text"), [(None, "null"), (1e-4, "0.0001"), (True, "true"), ("ü", "ü"), ([1], "[1]")]
)
def test_values_as_text(value, text):
    assert value_text(value) == text


def test_long_values_are_cut_and_say_where_the_rest_is():
    text = shorten("class, " * 2000, "params/classes.txt")
    assert len(text) == VALUE_LIMIT
    assert text.endswith("(14000 characters: params/classes.txt)")
