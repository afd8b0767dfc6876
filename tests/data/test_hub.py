"""The downloading sources, on data that lies on this machine."""

import numpy as np
import pytest
import torchvision

from shift_diffusion.config import ConfigError
from shift_diffusion.data.prepare import prepare_data
from shift_diffusion.data.sources import content_hash, open_source
from shift_diffusion.data.store import PreparedData
from tests.data import files


def section(name, path=None, **changes):
    return files.data_section(path).model_copy(update={"source": name, **changes})


def test_torchvision_class_names_become_captions(tmp_path):
    root = tmp_path / "pictures"
    for label in ("red_fox", "owl"):
        (root / label).mkdir(parents=True)
        for number in range(6):
            files.noise(number + len(label)).save(root / label / f"{number}.png")
    data = section("torchvision:ImageFolder", root)
    report = prepare_data(data, files.NO_TEXT, (8, 16), tmp_path / "out")
    prepared = PreparedData.open(tmp_path / "out")
    assert report["used"] == 12
    assert set(prepared.captions) == {"red fox", "owl"}
    assert prepared.ids([0]) == ["ImageFolder-0000000"]


def test_torchvision_without_files_or_class_names():
    # the package's own generated data set stands for the many whose targets are plain numbers
    source = open_source(section("torchvision:FakeData", num_images=5))
    items = list(source.items())
    assert len(items) == 5
    assert all(item.caption.startswith("class ") for item in items)
    assert source.load(items[0]).size == (224, 224)
    again = open_source(section("torchvision:FakeData", num_images=5))
    assert [item.key for item in again.items()] == [item.key for item in items]


def test_torchvision_downloaded_format(tmp_path):
    """FashionMNIST's own files, four pictures of them."""
    import gzip
    import struct

    raw = tmp_path / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (4, 28, 28), dtype=np.uint8)
    for part in ("train", "t10k"):
        pixels = struct.pack(">IIII", 0x803, 4, 28, 28) + images.tobytes()
        labels = struct.pack(">II", 0x801, 4) + bytes([0, 1, 9, 1])
        for name, content in (("images-idx3", pixels), ("labels-idx1", labels)):
            (raw / f"{part}-{name}-ubyte").write_bytes(content)
            (raw / f"{part}-{name}-ubyte.gz").write_bytes(gzip.compress(content))
    items = list(open_source(section("torchvision:FashionMNIST", tmp_path)).items())
    assert [item.caption for item in items] == ["t-shirt/top", "trouser", "ankle boot", "trouser"]


def test_unknown_torchvision_name():
    with pytest.raises(ConfigError, match="no data set 'CIFAR1O'"):
        list(open_source(section("torchvision:CIFAR1O")).items())
    assert not hasattr(torchvision.datasets, "CIFAR1O")


def test_content_hash_needs_no_download():
    data = section("torchvision:CIFAR10", "/nowhere")
    assert content_hash(data) != content_hash(data.model_copy(update={"num_images": 5}))


def test_hugging_face_image_folder_and_parquet(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "folder"
    folder.mkdir()
    lines = []
    for number in range(5):
        files.noise(number).save(folder / f"{number}.png")
        lines.append(f'{{"file_name": "{number}.png", "text": "picture {number}"}}\n')
    (folder / "metadata.jsonl").write_text("".join(lines), encoding="utf-8")
    data = section(f"huggingface:{folder}")
    prepare_data(data, files.NO_TEXT, (8, 16), tmp_path / "one")
    one = PreparedData.open(tmp_path / "one")
    assert sorted(one.captions) == [f"picture {number}" for number in range(5)]
    parquet = tmp_path / "parquet"
    parquet.mkdir()
    datasets.load_dataset(str(folder), split="train").to_parquet(parquet / "train.parquet")
    prepare_data(section(f"huggingface:{parquet}"), files.NO_TEXT, (8, 16), tmp_path / "two")
    two = PreparedData.open(tmp_path / "two")
    assert (two.images(16) == one.images(16)).all()
    assert two.captions == one.captions


def test_hugging_face_that_cannot_be_opened(tmp_path):
    pytest.importorskip("datasets")
    with pytest.raises(ConfigError, match="can't be opened"):
        list(open_source(section(f"huggingface:{tmp_path / 'nothing'}")).items())
