"""Worker processes: results in order, flat memory, and no file that can bring the run down or hold it up."""

import os
import time

import pytest

from shift_diffusion.data import decode, work
from shift_diffusion.data.cache import Cache
from shift_diffusion.data.sources import Item, open_source
from shift_diffusion.data.time_limit import TookTooLong, time_limit
from tests.data import files

TARGET = decode.Target(resolutions=(8, 16), background="#ffffff", min_size=8)


def test_packed_pictures_come_back_whole():
    picture = decode.decode(files.encoded(files.noise(1), "PNG"), TARGET)
    again = work.unpack(work.pack(picture))
    assert {**vars(again), "pixels": None} == {**vars(picture), "pixels": None}
    assert all((again.pixels[side] == picture.pixels[side]).all() for side in (8, 16))


def test_results_keep_the_order_and_bound_what_is_read_ahead(tmp_path):
    for number in range(300):
        files.noise(number, (16, 16)).save(tmp_path / f"{number:03}.png")
    section = files.data_section(tmp_path)
    taken = []

    def watched():
        for item in open_source(section).items():
            taken.append(item.id)
            yield item

    outcomes = work.results(watched(), section, TARGET, None, workers=2)
    first = next(outcomes)
    assert len(taken) <= 2 * 4 * 16
    assert [first.item.id, *(outcome.item.id for outcome in outcomes)] == sorted(taken)


class Crashing(work.Worker):
    """A worker whose decoder takes the process with it on one file, as a damaged library might."""

    def _prepare(self, loaded):
        if loaded == b"crash":
            os._exit(139)
        return super()._prepare(loaded)


def start_crashing(data, target, cache_file):
    work._worker = Crashing(open_source(data), target, Cache(cache_file))


def test_a_file_that_kills_its_worker_is_refused_by_name(tmp_path, monkeypatch):
    for number in range(40):
        files.noise(number, (16, 16)).save(tmp_path / f"{number:03}.png")
    (tmp_path / "017.png").write_bytes(b"crash")
    monkeypatch.setattr(work, "_start", start_crashing)
    section = files.data_section(tmp_path)
    outcomes = list(work.results(open_source(section).items(), section, TARGET, None, workers=2))
    assert [outcome.item.id for outcome in outcomes if outcome.picture is None] == ["017.png"]
    assert [outcome.result.reason for outcome in outcomes if outcome.picture is None] == ["the decoder crashed"]
    assert len(outcomes) == 40


def _stubborn():
    with time_limit(0.05):
        while True:
            try:
                time.sleep(1)
            except Exception:
                continue


def test_time_limit_stops_a_block_and_only_that():
    started = time.monotonic()
    with pytest.raises(TookTooLong):
        _stubborn()
    with time_limit(0.05):
        pass
    time.sleep(0.1)
    assert time.monotonic() - started < 2


def test_a_picture_that_takes_too_long_is_refused(monkeypatch):
    class Slow:
        def identity(self, item):
            return None

        def load(self, item):
            time.sleep(5)

    monkeypatch.setattr(work, "_SECONDS", 0.05)
    result = work.Worker(Slow(), TARGET, Cache(None)).result(Item(id="slow", caption="", key=0))
    assert "took longer" in result.reason


def test_cache_keeps_first_value_and_survives_being_read_only(tmp_path):
    cache = Cache(tmp_path / "deep" / "cache.db")
    cache.put({"a": b"1", "b": b""})
    cache.put({"a": b"2"})
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (b"1", b"", None)
    cache.close()
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    useless = Cache(blocked / "cache.db")  # its folder can't be made
    useless.put({"a": b"1"})
    assert useless.get("a") is None
