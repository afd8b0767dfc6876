"""The prepared folder as training reads it."""

import json

import numpy as np
import pytest
import torch
from safetensors import safe_open

from shift_diffusion.config import ConfigError
from shift_diffusion.data.prepare import prepare_data
from shift_diffusion.data.store import PreparedData
from shift_diffusion.data.text_store import TextStore, TextWriter
from tests.data import files


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("store")
    prepare_data(files.data_section(num_images=100), files.NO_TEXT, (8, 16), folder / "prepared")
    return PreparedData.open(folder / "prepared")


def test_batches_are_channels_last_views(data):
    batch = data.batch([3, 1, 2], 16)
    assert batch.shape == (3, 3, 16, 16)
    assert batch.dtype == torch.uint8
    assert batch.is_contiguous(memory_format=torch.channels_last)
    assert (batch.permute(0, 2, 3, 1).numpy() == data.images(16)[[3, 1, 2]]).all()
    assert data.batch(torch.tensor([0]), 8).shape == (1, 3, 8, 8)


def test_pictures_are_mapped_not_loaded(data):
    assert isinstance(data.images(16), np.memmap)
    assert not data.images(16).flags.writeable


def test_splits_cover_everything_once(data):
    train, validation = data.split("train"), data.split("validation")
    assert train.dtype == np.int64
    assert sorted([*train, *validation]) == list(range(len(data)))
    with pytest.raises(ValueError, match="train, validation"):
        data.split("test")


def test_captions_ids_and_manifest(data):
    assert data.captions[0] == "a handwritten zero"
    assert data.ids([2]) == ["digit-0002"]
    assert set(data.manifest[0]) == {"id", "caption", "sha256", "split", "width", "height", "mode", "class"}
    assert data.text([0]) is None
    assert data.text_dim is None


def test_what_cannot_be_read_says_what_to_do(data, tmp_path):
    with pytest.raises(ConfigError, match="8, 16, not 32"):
        data.images(32)
    with pytest.raises(ConfigError, match="dvc repro prepare"):
        PreparedData.open(tmp_path / "nothing")
    (tmp_path / "info.json").write_text(json.dumps({"format_version": 99}), encoding="utf-8")
    with pytest.raises(ConfigError, match="format version 99"):
        PreparedData.open(tmp_path)


def test_text_store_round_trip(tmp_path):
    rng = np.random.default_rng(0)
    rows = [(rng.normal(size=(n, 6)).astype(np.float16), rng.normal(size=6).astype(np.float32)) for n in (3, 0, 5)]
    writer = TextWriter(tmp_path, 6)
    for tokens, pooled in rows:
        writer.add(tokens, pooled)
    writer.finish([2, 0, 1, 2])
    assert [path.name for path in tmp_path.iterdir()] == ["text.safetensors"]
    store = TextStore(tmp_path / "text.safetensors")
    found = store.rows(np.array([0, 1, 2, 3]))
    assert found.tokens.shape == (4, 5, 6)
    assert found.tokens.dtype == torch.float32
    assert found.mask.sum(1).tolist() == [5, 3, 0, 5]
    for row, caption in enumerate([2, 0, 1, 2]):
        tokens, pooled = rows[caption]
        assert (found.tokens[row, : len(tokens)].numpy() == tokens).all()
        assert not found.tokens[row, len(tokens) :].any()
        assert (found.pooled[row].numpy() == pooled).all()
    with safe_open(tmp_path / "text.safetensors", "np") as official:  # any reader of the format reads it
        assert (official.get_tensor("offsets") == [0, 3, 3, 8]).all()
        assert official.get_tensor("tokens").shape == (9, 6)
