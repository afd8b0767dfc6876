"""Folders as people have them: classes, captions in three forms, and everything that isn't a picture."""

import json
import os

import pytest

from shift_diffusion.config import ConfigError
from shift_diffusion.data.sources import content_hash, open_source
from tests.data import files


def put(root, name, seed=0):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    files.noise(seed).save(path, "PNG")
    return path


def listed(root, **changes):
    source = open_source(files.data_section(root, **changes))
    return {item.id: item for item in source.items()}, source.notes


def test_only_pictures_are_found_whatever_else_lies_about(tmp_path):
    for seed, name in enumerate(("root.png", "cats/CAT.JPEG", "cats/kittens/small.Png", "dogs/dog.PNG")):
        put(tmp_path, name, seed)
    put(tmp_path, ".ipynb_checkpoints/copy.png")
    put(tmp_path, "cats/.hidden.png")
    for name in (".DS_Store", "Thumbs.db", "notes.md"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / "empty").mkdir()
    os.symlink(tmp_path, tmp_path / "cats" / "loop")
    items, notes = listed(tmp_path)
    assert list(items) == ["cats/CAT.JPEG", "cats/kittens/small.Png", "dogs/dog.PNG", "root.png"]
    assert items["cats/kittens/small.Png"].caption == "cats"
    assert items["root.png"].caption == ""
    # an empty class keeps its number, so that the others' don't change when it gets pictures
    assert {item.details.get("class"): item.details.get("class_number") for item in items.values()} == {
        "cats": 0,
        "dogs": 1,
        None: None,
    }
    assert notes == {
        "ignored_hidden": 3,
        "ignored_other": 1,
        "ignored_link_to_folder": 1,
        "empty_classes": ["empty"],
    }


def test_a_class_keeps_its_number_when_an_empty_one_before_it_fills(tmp_path):
    """Case 4."""
    put(tmp_path, "dogs/a.png")
    (tmp_path / "cats").mkdir()
    before, notes = listed(tmp_path)
    assert notes["empty_classes"] == ["cats"]
    put(tmp_path, "cats/b.png", 1)
    after, _ = listed(tmp_path)
    assert before["dogs/a.png"].details == after["dogs/a.png"].details == {"class": "dogs", "class_number": 1}
    assert after["cats/b.png"].details["class_number"] == 0


def test_an_empty_caption_file_means_no_caption(tmp_path):
    """Case 9: not the name of the class; what follows from "" is in test_text.py and test_conditioning.py."""
    put(tmp_path, "cats/a.png")
    (tmp_path / "cats/a.txt").write_text(" \n", encoding="utf-8")
    assert listed(tmp_path)[0]["cats/a.png"].caption == ""


def test_empty_class_can_be_refused(tmp_path):
    put(tmp_path, "cats/a.png")
    (tmp_path / "dogs").mkdir()
    with pytest.raises(ConfigError, match="dogs"):
        listed(tmp_path, empty_class="refuse")


def test_missing_folder_is_named():
    with pytest.raises(ConfigError, match="nowhere"):
        listed("/nowhere/at/all")


def test_captions_from_text_file_metadata_and_class(tmp_path):
    for name in ("red_cars/a.png", "red_cars/b.png", "red_cars/c.png", "d.png", "e.png"):
        put(tmp_path, name)
    (tmp_path / "red_cars/a.txt").write_text("  a car\non a road \n", encoding="utf-8")
    rows = [
        {"file_name": "d.png", "text": "from the root"},
        {"file_name": "red_cars/b.png", "text": "by relative path"},
        {"file_name": "gone.png", "text": "no such picture"},
    ]
    (tmp_path / "metadata.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    items, notes = listed(tmp_path)
    assert {name: item.caption for name, item in items.items()} == {
        "d.png": "from the root",
        "e.png": "",
        "red_cars/a.png": "a car on a road",
        "red_cars/b.png": "by relative path",
        "red_cars/c.png": "red cars",
    }
    assert notes["captions_without_picture"] == 1


def test_metadata_csv_in_a_sub_folder_has_the_last_word(tmp_path):
    put(tmp_path, "cats/a.png")
    (tmp_path / "metadata.jsonl").write_text('{"file_name": "cats/a.png", "text": "far"}\n', encoding="utf-8")
    (tmp_path / "cats/metadata.csv").write_text('file_name,caption\na.png,"near, and quoted"\n', encoding="utf-8")
    assert listed(tmp_path)[0]["cats/a.png"].caption == "near, and quoted"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("metadata.jsonl", '{"file_name": "a.png"\n', "line 1"),
        ("metadata.jsonl", '{"text": "no name"}\n', "row 1 has no file_name"),
        ("metadata.csv", "name,text\na.png,x\n", "row 1 has no file_name"),
    ],
)
def test_unreadable_metadata_is_named(tmp_path, name, text, message):
    put(tmp_path, "a.png")
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message) as caught:
        listed(tmp_path)
    assert name in str(caught.value)


def test_caption_in_csv_may_hold_line_breaks_commas_and_quotes(tmp_path):
    put(tmp_path, "a.png")
    put(tmp_path, "b.png", 1)
    text = 'file_name,text\na.png,"two\nlines, ""quoted"""\nb.png,plain\n'
    (tmp_path / "metadata.csv").write_text(text)
    items, _ = listed(tmp_path)
    assert {name: item.caption for name, item in items.items()} == {"a.png": 'two lines, "quoted"', "b.png": "plain"}


def test_class_folder_whose_name_is_not_utf8_can_be_reported(tmp_path):
    folder = os.fsencode(tmp_path) + b"/caf\xe9"
    try:
        os.mkdir(folder)
    except OSError:
        pytest.skip("this file system takes UTF-8 names only")
    with open(folder + b"/a.png", "wb") as file:
        files.noise(0).save(file, "PNG")
    items, _ = listed(tmp_path)
    (item,) = items.values()
    assert (item.id, item.caption, item.details["class"]) == ("caf\ufffd/a.png", "caf\ufffd", "caf\ufffd")
    json.dumps([item.id, item.details], ensure_ascii=False).encode()


def test_num_images_chooses_over_all_classes_and_stably(tmp_path):
    for kind in ("a", "b", "c"):
        for number in range(20):
            put(tmp_path, f"{kind}/{number:02}.png")
    items, notes = listed(tmp_path, num_images=15)
    assert len(items) == 15
    assert notes["left_out_by_num_images"] == 45
    assert {item.details["class"] for item in items.values()} == {"a", "b", "c"}
    assert list(items) == sorted(items)
    put(tmp_path, "c/new.png")
    assert len(set(listed(tmp_path, num_images=15)[0]) & set(items)) >= 14


def test_content_hash_follows_content_names_and_captions(tmp_path):
    path = put(tmp_path, "cats/a.png")
    section = files.data_section(tmp_path)
    first = content_hash(section)
    os.utime(path, (1, 1))
    assert content_hash(section) == first
    (tmp_path / "cats/a.txt").write_text("a cat", encoding="utf-8")
    captioned = content_hash(section)
    assert captioned != first
    put(tmp_path, "cats/a.png", seed=9)
    assert content_hash(section) not in (first, captioned)
