"""What a worker process does: load one item, prepare it, or say why not; results come in the items' order.

No torch here: workers start quickly. A worker that a damaged file brings down is replaced, and the file is
refused by name.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from shift_diffusion.config import Data
from shift_diffusion.data import decode
from shift_diffusion.data.cache import Cache
from shift_diffusion.data.decode import Picture, Rejected, Target
from shift_diffusion.data.sources import Item, Source, hash_of, open_source
from shift_diffusion.data.time_limit import TookTooLong, time_limit

_CHUNK = 16  # items per message to a worker
_CHUNKS_AHEAD = 4  # per worker: bounds what is in memory
_SECONDS = 60  # for one picture


class Result(NamedTuple):
    """What a worker found for one item: a picture, or the reason why there is none."""

    packed: bytes | None  # the prepared picture, as `pack` makes it
    reason: str
    identity: str  # of the picture's content before preparation; "" for what couldn't be read
    cache_key: str = ""
    cached: bool = False  # the picture was not decoded now


class Outcome(NamedTuple):
    """One item after preparation; `picture` is None where `result.reason` says why."""

    item: Item
    picture: Picture | None
    result: Result


def _outcome(item: Item, result: Result) -> Outcome:
    return Outcome(item, None if result.packed is None else unpack(result.packed), result)


def results(
    items: Iterable[Item], data: Data, target: Target, cache_file: Path | None, workers: int
) -> Iterator[Outcome]:
    """Prepares items in worker processes and yields the outcomes in the items' order.

    Memory stays flat: at most `workers * _CHUNKS_AHEAD` chunks are under way.
    """
    if workers == 1:
        worker = Worker(open_source(data), target, Cache(cache_file))
        for item in items:
            yield _outcome(item, worker.result(item))
        return
    pool = Pool(data, target, cache_file, workers)
    try:
        yield from pool.run(items)
    finally:
        pool.close()


class Worker:
    """Loads and prepares single items."""

    def __init__(self, source: Source, target: Target, cache: Cache):
        self.source, self.target, self.cache = source, target, cache
        self.settings = hash_of(decode.VERSION, *sorted(asdict(target).items()))

    def result(self, item: Item) -> Result:
        identity = ""
        try:
            with time_limit(_SECONDS):
                loaded = None
                identity = self.source.identity(item) or ""
                if not identity:
                    loaded = self._load(item)
                    identity = _content(loaded)
                key = hash_of(self.settings, identity)
                known = self.cache.get(key)
                packed = known or pack(self._prepare(self._load(item) if loaded is None else loaded))
            return Result(packed, "", identity, key, known is not None)
        except Rejected as error:
            return Result(None, str(error), identity)
        except TookTooLong:
            return Result(None, f"took longer than {_SECONDS} s", identity)

    def _load(self, item: Item) -> bytes | Image.Image:
        try:
            return self.source.load(item)
        except OSError as error:
            raise Rejected(f"can't be read ({error.strerror or type(error).__name__})") from error

    def _prepare(self, loaded: bytes | Image.Image) -> Picture:
        return decode.decode(loaded, self.target) if isinstance(loaded, bytes) else decode.prepare(loaded, self.target)


def _content(loaded: bytes | Image.Image) -> str:
    if isinstance(loaded, bytes):
        return hashlib.sha256(loaded).hexdigest()
    return hash_of(loaded.mode, loaded.size, hashlib.sha256(loaded.tobytes()).hexdigest())


_worker: Worker | None = None  # of this process, set once when the process starts


def _start(data: Data, target: Target, cache_file: Path | None) -> None:
    global _worker
    _worker = Worker(open_source(data), target, Cache(cache_file))


def _results(items: list[Item]) -> list[Result]:
    assert _worker is not None
    return [_worker.result(item) for item in items]


class Pool:
    """Worker processes that are replaced when a file brings one down."""

    def __init__(self, data: Data, target: Target, cache_file: Path | None, workers: int):
        self.arguments, self.workers = (data, target, cache_file), workers
        self.executor = self._executor(workers)

    def _executor(self, workers: int) -> ProcessPoolExecutor:
        # spawn: the parent may hold locks of torch's threads, which a forked child would inherit
        context = multiprocessing.get_context("spawn")
        return ProcessPoolExecutor(workers, mp_context=context, initializer=_start, initargs=self.arguments)

    def run(self, items: Iterable[Item]) -> Iterator[Outcome]:
        remaining = iter(items)
        waiting: deque[tuple[list[Item], Future]] = deque()
        while True:
            while len(waiting) < self.workers * _CHUNKS_AHEAD and (chunk := list(islice(remaining, _CHUNK))):
                waiting.append((chunk, self.executor.submit(_results, chunk)))
            if not waiting:
                return
            chunk, future = waiting.popleft()
            try:
                yield from map(_outcome, chunk, future.result())
            except BrokenProcessPool:
                chunks = [chunk, *(other for other, _ in waiting)]
                waiting.clear()
                yield from self._one_by_one(item for chunk in chunks for item in chunk)
                self.executor = self._executor(self.workers)

    def _one_by_one(self, items: Iterable[Item]) -> Iterator[Outcome]:
        """After a crash: each item alone, so that the guilty one is known."""
        executor = self._executor(1)
        for item in items:
            try:
                yield _outcome(item, executor.submit(_results, [item]).result()[0])
            except BrokenProcessPool:
                yield _outcome(item, Result(None, "the decoder crashed", ""))
                executor = self._executor(1)
        executor.shutdown()

    def close(self) -> None:
        self.executor.shutdown(cancel_futures=True)


def pack(picture: Picture) -> bytes:
    """A picture as bytes for the cache: one line of JSON, then the pixels, largest first."""
    head = {name: value for name, value in vars(picture).items() if name != "pixels"}
    head["resolutions"] = sorted(picture.pixels, reverse=True)
    return json.dumps(head).encode() + b"\n" + b"".join(picture.pixels[side].tobytes() for side in head["resolutions"])


def unpack(data: bytes) -> Picture:
    line, _, rest = data.partition(b"\n")
    head, pixels = json.loads(line), {}
    for side in head.pop("resolutions"):
        count = side * side * 3
        pixels[side], rest = np.frombuffer(rest[:count], np.uint8).reshape(side, side, 3), rest[count:]
    return Picture(pixels=pixels, **head)


def num_workers(setting: int) -> int:
    """`data.workers`, or one per core this process may use."""
    if setting:
        return setting
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
