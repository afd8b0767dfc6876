"""Files are never half there; pictures say how they were made and come out the same every time."""

import json
import os
import stat

import numpy as np
import pytest
from PIL import Image

from shift_diffusion.files import new_folder, read_json, write_bytes_atomic, write_json
from shift_diffusion.pictures import grid, save_png
from shift_diffusion.plots import bar_plot, line_plot
from shift_diffusion.progress import Progress


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.bin"
    write_bytes_atomic(path, b"old")
    with pytest.raises(TypeError):
        write_bytes_atomic(path, "not bytes")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a.bin"]


def test_files_get_the_permissions_of_the_umask(tmp_path):
    old = os.umask(0o022)
    try:
        write_bytes_atomic(tmp_path / "a", b"")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o644


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_json_refuses_what_is_no_number_and_names_the_key(tmp_path, bad):
    with pytest.raises(ValueError, match="fid"):
        write_json(tmp_path / "m.json", {"a": {"fid": bad}})
    assert not (tmp_path / "m.json").exists()


def test_json_is_strict_and_sorted(tmp_path):
    write_json(tmp_path / "m.json", {"b": 1, "a": [1.5, "ü"]})
    assert (tmp_path / "m.json").read_text(encoding="utf-8").startswith('{\n  "a"')
    assert read_json(tmp_path / "m.json") == {"a": [1.5, "ü"], "b": 1}
    (tmp_path / "m.json").write_text("{")
    with pytest.raises(ValueError, match=r"m\.json"):
        read_json(tmp_path / "m.json")


def test_new_folder_replaces_as_a_whole_or_not_at_all(tmp_path):
    target = tmp_path / "out"
    with new_folder(target) as folder:
        (folder / "one").write_text("1")
    with pytest.raises(FileNotFoundError), new_folder(target) as folder:
        (folder / "two").write_text("2")
        (folder / "missing").read_text()
    assert os.listdir(target) == ["one"]
    assert os.listdir(tmp_path) == ["out"]


def test_grid_places_images_row_by_row():
    images = np.zeros((3, 3, 64, 64), np.uint8)
    images[1] = 200
    sheet = np.asarray(grid(images, columns=2, padding=2))
    assert sheet.shape == (130, 130, 3)
    assert sheet[10, 100].tolist() == [200] * 3
    assert sheet[100, 100].tolist() == [255] * 3  # the empty place is white


def test_grid_enlarges_small_images_and_writes_labels():
    small = np.zeros((2, 3, 8, 8), np.uint8)
    plain, labelled = grid(small), grid(small, labels=["a cat", "a dog that runs"])
    assert plain.size == (64 * 2 + 2, 64)
    assert labelled.size[1] > plain.size[1]


@pytest.mark.parametrize("images", [np.zeros((0, 3, 8, 8), np.uint8), np.zeros((2, 3, 8, 8), np.float32)])
def test_grid_refuses_what_is_no_batch_of_images(images):
    with pytest.raises(ValueError, match="uint8"):
        grid(images)


def test_a_picture_carries_its_origin(tmp_path):
    save_png(Image.new("RGB", (4, 4)), tmp_path / "a.png", {"seed": 7, "prompt": "a wömän"})
    with Image.open(tmp_path / "a.png") as image:
        assert image.text == {"seed": "7", "prompt": "a wömän"}


def test_plots_have_the_same_bytes_for_the_same_numbers(tmp_path):
    for name in ("a.png", "b.png"):
        line_plot(tmp_path / name, {"loss": ([1, 2, 3], [3.0, 2.0, 1.0])}, "step", "loss", "curve", log=True)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    bar_plot(tmp_path / "c.png", {"int8": {"ms": 3.0}, "float": {"ms": 9.0}}, "ms", "latency")
    assert (tmp_path / "c.png").stat().st_size > 1000


def test_progress_prints_lines_with_rate_where_there_is_no_terminal(capsys):
    bar = Progress(10, "stage-1", initial=4)
    bar.update(6, "loss 0.5")
    bar.close()
    line = capsys.readouterr().out.strip()
    assert line.startswith("stage-1: 10/10 images, ")
    assert line.endswith("/s, loss 0.5")
    assert json.dumps(line)  # one plain line, no control characters
    assert "\r" not in line
