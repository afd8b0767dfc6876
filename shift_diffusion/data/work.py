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
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

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


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One item after preparation: a picture, or the reason why there is none."""

    item: Item
    picture: Picture | None
    reason: str
    cached: bool  # the picture was not decoded now
    cache_key: str
    identity: str  # of the picture's content before preparation; "" for what couldn't be read


def results(
    items: Iterable[Item], data: Data, target: Target, cache_file: Path | None, workers: int
) -> Iterator[Outcome]:
    """Prepares items in worker processes and yields the outcomes in the items' order.

    Memory stays flat: at most `workers * _CHUNKS_AHEAD` chunks are under way.
    """
    if workers == 1:
        worker = Worker(open_source(data), target, Cache(cache_file))
        for item in items:
            yield worker.outcome(item)
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

    def outcome(self, item: Item) -> Outcome:
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
                if known is None:
                    picture = self._prepare(self._load(item) if loaded is None else loaded)
                else:
                    picture = unpack(known)
            cached = known is not None
            return Outcome(item=item, picture=picture, reason="", cached=cached, cache_key=key, identity=identity)
        except Rejected as error:
            return refusal(item, str(error), identity)
        except TookTooLong:
            return refusal(item, f"took longer than {_SECONDS} s", identity)

    def _load(self, item: Item) -> bytes | Image.Image:
        try:
            return self.source.load(item)
        except OSError as error:
            raise Rejected(f"can't be read ({error.strerror or type(error).__name__})") from error

    def _prepare(self, loaded: bytes | Image.Image) -> Picture:
        return decode.decode(loaded, self.target) if isinstance(loaded, bytes) else decode.prepare(loaded, self.target)


def refusal(item: Item, reason: str, identity: str = "") -> Outcome:
    return Outcome(item=item, picture=None, reason=reason, cached=False, cache_key="", identity=identity)


def _content(loaded: bytes | Image.Image) -> str:
    if isinstance(loaded, bytes):
        return hashlib.sha256(loaded).hexdigest()
    return hash_of(loaded.mode, loaded.size, hashlib.sha256(loaded.tobytes()).hexdigest())


_worker: Worker | None = None  # of this process, set once when the process starts


def _start(data: Data, target: Target, cache_file: Path | None) -> None:
    global _worker
    _worker = Worker(open_source(data), target, Cache(cache_file))


def _outcomes(items: list[Item]) -> list[Outcome]:
    assert _worker is not None
    return [_worker.outcome(item) for item in items]


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
                waiting.append((chunk, self.executor.submit(_outcomes, chunk)))
            if not waiting:
                return
            chunk, future = waiting.popleft()
            try:
                yield from future.result()
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
                yield executor.submit(_outcomes, [item]).result()[0]
            except BrokenProcessPool:
                yield refusal(item, "the decoder crashed")
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
