"""The local record survives what happens to processes and folders."""

import os

import pytest

from shift_diffusion.tracking.journal import Journal, journal_root, journals


def test_events_come_back_in_order_from_any_offset(tmp_path):
    journal = Journal.create(tmp_path, "stage-1")
    for step in range(5):
        journal.append("metrics", values={"loss": 1.0}, step=step)
    events = list(journal.read())
    assert [event["step"] for _, event in events] == [0, 1, 2, 3, 4]
    assert [event["step"] for _, event in journal.read(events[2][0])] == [3, 4]


def test_a_line_cut_by_a_kill_is_not_read(tmp_path):
    journal = Journal.create(tmp_path, "stage-1")
    journal.append("tags", values={})
    with open(journal.events_file, "a") as file:
        file.write('{"kind": "metr')
    assert [event["kind"] for _, event in journal.read()] == ["tags"]


def test_nan_is_kept(tmp_path):
    journal = Journal.create(tmp_path, "stage-1")
    journal.append("metrics", values={"loss": float("nan"), "max": float("inf")}, step=0)
    (_, event), *_ = journal.read()
    assert event["values"]["loss"] != event["values"]["loss"]
    assert event["values"]["max"] == float("inf")


def test_files_are_copied_as_they_are_now(tmp_path):
    journal = Journal.create(tmp_path, "stage-1")
    picture = tmp_path / "grid.png"
    picture.write_bytes(b"first")
    kept = journal.keep_file(picture)
    picture.write_bytes(b"second")
    assert (journal.folder / kept).read_bytes() == b"first"


def test_a_journal_is_sent_by_one_at_a_time(tmp_path):
    journal = Journal.create(tmp_path, "stage-1")
    journal.append("tags", values={})
    lock = journal.try_lock()
    assert journals(tmp_path)[0].try_lock() is None
    lock.release()
    assert journals(tmp_path)[0].try_lock() is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_project(tmp_path):
    tmp_path.chmod(0o500)
    assert tmp_path not in journal_root(tmp_path).parents


def test_project_whose_journal_folder_cannot_be_made(tmp_path):
    (tmp_path / ".mlflow").write_text("a file in its place")
    folder = journal_root(tmp_path)
    assert folder.is_dir()
    assert tmp_path not in folder.parents
