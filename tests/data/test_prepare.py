"""Preparation as a whole: counts that add up, the same bytes every time, splits that hold, nothing half done."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image, ImageDraw

from shift_diffusion.config import ConfigError
from shift_diffusion.data import prepare as module
from shift_diffusion.data.prepare import prepare_data, split_of
from shift_diffusion.data.sources import content_hash
from shift_diffusion.data.store import PreparedData
from tests.data import files

SIDES = (8, 16)


def fill(root, count=24, start=0):
    root.mkdir(parents=True, exist_ok=True)
    for number in range(start, start + count):
        files.noise(number).save(root / f"{number:03}.png")


def run(root, out, cache=None, **changes):
    return prepare_data(files.data_section(root, **changes), files.NO_TEXT, SIDES, out, cache)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_damaged_files_are_named_and_the_rest_goes_on(tmp_path):
    root = tmp_path / "pictures"
    fill(root, 6)
    whole = files.encoded(files.noise(50, (200, 160)), "JPEG", quality=95)
    (root / "cut.jpg").write_bytes(whole[: len(whole) * 6 // 10])
    (root / "empty.png").write_bytes(b"")
    (root / "text.jpg").write_bytes(b"not a picture at all, only text " * 20)
    (root / "checksum.png").write_bytes(files.png_with_bad_checksum(files.noise(51)))
    (root / "bomb.png").write_bytes(files.png_claiming(20_000, 20_000))
    files.halves((4, 4)).save(root / "tiny.png")
    (root / "link.png").symlink_to(root / "gone.png")
    report = run(root, tmp_path / "out")
    assert (report["found"], report["used"]) == (13, 6)
    assert report["found"] == report["used"] + sum(report["skipped"].values())
    reasons = {entry["id"]: entry["reason"] for entry in report["refused"]}
    assert reasons["cut.jpg"] == "truncated file"
    assert reasons["empty.png"] == "empty file"
    assert reasons["text.jpg"] == "not a picture in a known format"
    assert "damaged" in reasons["checksum.png"]
    assert "100,000,000" in reasons["bomb.png"]
    assert "min_size" in reasons["tiny.png"]
    assert "can't be read" in reasons["link.png"]


def test_too_many_damaged_files_are_an_error_that_names_them(tmp_path):
    root, out = tmp_path / "pictures", tmp_path / "out"
    fill(root, 6)
    (root / "bad.png").write_bytes(b"")
    with pytest.raises(ConfigError, match="bad.png: empty file"):
        run(root, out, max_rejected_fraction=0.1)
    assert not out.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pictures"]  # no temporary folder left


@pytest.mark.parametrize("names", [[], ["a.png", "b.jpg"]])
def test_no_usable_picture_is_an_error(tmp_path, names):
    root = tmp_path / "pictures"
    root.mkdir()
    for name in names:
        (root / name).write_bytes(b"junk")
    with pytest.raises(ConfigError, match="holds no pictures|can be used"):
        run(root, tmp_path / "out")


def test_modes_sizes_and_duplicates_are_counted(tmp_path):
    root = tmp_path / "pictures"
    fill(root, 4)
    files.halves(mode="L").save(root / "gray.png")
    files.halves(mode="CMYK").save(root / "cmyk.jpg")
    shutil.copy(root / "001.png", root / "again.png")
    files.halves((12, 12)).save(root / "small.png")
    report = run(root, tmp_path / "out")
    assert report["modes"] == {"CMYK": 1, "L": 1, "RGB": 6}
    assert report["formats"] == {"JPEG": 1, "PNG": 7}
    assert (report["duplicates"], report["enlarged"], report["without_caption"]) == (1, 1, 8)
    assert report["shorter_side"] == {"min": 12, "median": 40, "max": 64}


def test_one_folder_of_every_color_mode(tmp_path):
    """Case 2: one batch of three channels, the right colors, and no dark fringe from below transparent pixels."""
    root = tmp_path / "pictures"
    root.mkdir()
    dot = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    ImageDraw.Draw(dot).ellipse((12, 12, 51, 51), fill=(*files.RED, 255))
    palette = files.halves().quantize(4)
    dot.save(root / "dot.png")
    dot.getchannel("A").convert("1").save(root / "bits.png")
    palette.save(root / "palette.png", transparency=palette.getpixel((0, 63)))  # blue is transparent
    files.halves(mode="L").save(root / "gray.png")
    files.halves(mode="LA").save(root / "gray-alpha.png")
    files.halves().save(root / "rgb.png")
    files.halves(mode="CMYK").save(root / "adobe.jpg", quality=95)
    (root / "plain.jpg").write_bytes(files.plain_cmyk_jpeg(files.halves()))
    report = run(root, tmp_path / "out")
    assert report["modes"] == {"1": 1, "CMYK": 2, "L": 1, "LA": 1, "P": 1, "RGB": 1, "RGBA": 1}
    data = PreparedData.open(tmp_path / "out")
    assert data.batch(range(8), 16).shape == (8, 3, 16, 16)
    images = {name: data.images(16)[row].astype(int) for row, name in enumerate(data.ids(range(8)))}
    for name in ("adobe.jpg", "plain.jpg", "palette.png", "rgb.png"):
        assert np.abs(images[name][2:6] - files.RED).max() <= 24, name
    assert (images["palette.png"][10:14] == 255).all()
    assert (images["dot.png"][0] == 255).all()
    assert images["dot.png"][8, 8].tolist() == list(files.RED)
    assert images["dot.png"][..., 0].min() >= files.RED[0]
    assert (images["bits.png"][0].max(), images["bits.png"][8, 8].min()) == (0, 255)


def test_same_bytes_whatever_workers_creation_order_and_cache(tmp_path):
    root, copy = tmp_path / "pictures", tmp_path / "copy"
    fill(root, 40)
    copy.mkdir()
    for path in sorted(root.iterdir(), reverse=True):
        shutil.copy(path, copy / path.name)
    run(root, tmp_path / "one")
    run(copy, tmp_path / "two", workers=2)
    run(root, tmp_path / "three", cache=tmp_path / "cache")
    report = run(root, tmp_path / "four", cache=tmp_path / "cache")
    assert report["run"]["decoded"] == 0
    one = contents(tmp_path / "one")
    assert set(one) == {"images_8.npy", "images_16.npy", "manifest.jsonl", "info.json"}
    for other in ("two", "three", "four"):
        assert contents(tmp_path / other) == one


def test_ten_new_pictures_are_the_only_ones_decoded_and_move_no_other(tmp_path):
    root, cache = tmp_path / "pictures", tmp_path / "cache"
    fill(root, 60)
    assert run(root, tmp_path / "one", cache)["run"]["decoded"] == 60
    fill(root, 10, start=1000)
    (root / "000.png").rename(root / "zzz.png")  # a new name isn't a new picture
    report = run(root, tmp_path / "two", cache)
    assert report["run"]["decoded"] == 10
    before = {row["sha256"]: row["split"] for row in PreparedData.open(tmp_path / "one").manifest}
    after = {row["sha256"]: row["split"] for row in PreparedData.open(tmp_path / "two").manifest}
    assert before.items() <= after.items()
    assert len(after) == 70


def test_a_cached_picture_is_not_used_under_other_settings(tmp_path):
    root, cache = tmp_path / "pictures", tmp_path / "cache"
    fill(root, 5)
    run(root, tmp_path / "one", cache)
    assert run(root, tmp_path / "two", cache, background="#000000")["run"]["decoded"] == 5


def test_a_broken_cache_only_costs_time(tmp_path):
    root, cache = tmp_path / "pictures", tmp_path / "cache"
    fill(root, 5)
    cache.mkdir()
    (cache / "pictures.db").write_bytes(b"not a database" * 100)
    assert run(root, tmp_path / "one", cache)["run"]["decoded"] == 5
    assert run(root, tmp_path / "two", cache)["run"]["decoded"] == 0


def test_equal_pictures_stand_on_one_side_even_with_other_metadata(tmp_path):
    root = tmp_path / "pictures"
    fill(root, 30)
    for number in range(30):
        files.noise(number).save(root / f"copy-{number:03}.png", compress_level=1, dpi=(72, 72))
    report = run(root, tmp_path / "out")
    assert report["duplicates"] == 30
    sides: dict[str, set] = {}
    for row in PreparedData.open(tmp_path / "out").manifest:
        sides.setdefault(row["sha256"], set()).add(row["split"])
    assert all(len(split) == 1 for split in sides.values())


def test_split_is_the_asked_share():
    digests = [f"{number * 2654435761 % 2**64:016x}" for number in range(1, 20_000)]
    digests = [module.hash_of(digest) for digest in digests]
    share = sum(split_of(digest, 0.1) == "validation" for digest in digests) / len(digests)
    assert abs(share - 0.1) < 0.01


@pytest.mark.parametrize("fraction", [1e-9, 1 - 1e-9])
def test_two_pictures_are_enough_and_one_is_not(tmp_path, fraction):
    root = tmp_path / "pictures"
    fill(root, 2)
    report = run(root, tmp_path / "out", validation_fraction=fraction)
    assert report["splits"] == {"train": 1, "validation": 1}
    shutil.copy(root / "000.png", root / "001.png")
    with pytest.raises(ConfigError, match="2 different pictures"):
        run(root, tmp_path / "out", validation_fraction=fraction)


def test_a_stopped_run_leaves_the_old_data_whole(tmp_path, monkeypatch):
    root, out = tmp_path / "pictures", tmp_path / "out"
    fill(root, 10)
    run(root, out)
    before = contents(out)

    def stop(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "write_text", stop)
    fill(root, 5, start=500)
    with pytest.raises(KeyboardInterrupt):
        run(root, out)
    assert contents(out) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "pictures"]


def test_digits_and_avatars(tmp_path):
    report = prepare_data(files.data_section(num_images=50), files.NO_TEXT, (8, 16), tmp_path / "digits")
    assert report["used"] == 50
    assert report["enlarged"] == 50
    section = files.data_section(num_images=6).model_copy(update={"source": "avatars"})
    prepare_data(section, files.NO_TEXT, (64, 32), tmp_path / "avatars")
    data = PreparedData.open(tmp_path / "avatars")
    from shift_diffusion.data.avatars import render

    assert (data.images(64)[3] == render(data.full_captions[3], 64)).all()
    assert data.ids([0, 5]) == ["avatar-000000", "avatar-000005"]


def test_content_hash_follows_pictures_captions_and_resolutions(tmp_path):
    root = tmp_path / "pictures"
    fill(root, 6)
    first = run(root, tmp_path / "out")["content_hash"]
    assert run(root, tmp_path / "out")["content_hash"] == first
    other = prepare_data(files.data_section(root), files.NO_TEXT, (8,), tmp_path / "out")["content_hash"]
    (root / "000.txt").write_text("a caption", encoding="utf-8")
    captioned = run(root, tmp_path / "out")["content_hash"]
    assert len({first, other, captioned}) == 3


def test_source_hash_is_what_the_source_says_without_preparing(tmp_path):
    root = tmp_path / "pictures"
    fill(root, 3)
    (root / "bad.png").write_bytes(b"junk")
    (root / "link.png").symlink_to(root / "gone.png")
    report = run(root, tmp_path / "out", workers=2)
    assert report["source_hash"] == content_hash(files.data_section(root))
    assert PreparedData.open(tmp_path / "out").info["source_hash"] == report["source_hash"]
    (root / "000.png").unlink()
    assert report["source_hash"] != content_hash(files.data_section(root))


def test_report_is_strict_json(tmp_path):
    root = tmp_path / "pictures"
    fill(root, 3)
    json.dumps(run(root, tmp_path / "out"), allow_nan=False)


def test_arrays_are_plain_numpy_files(tmp_path):
    root = tmp_path / "pictures"
    fill(root, 3)
    run(root, tmp_path / "out")
    array = np.load(tmp_path / "out" / "images_16.npy")
    assert array.shape == (3, 16, 16, 3)
    assert array.dtype == np.uint8
