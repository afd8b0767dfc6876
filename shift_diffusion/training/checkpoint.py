"""Checkpoints that survive a kill at any moment: complete or not there, verified when read, never another run's.

    <root>/stage-2-<run hash>/step-00000400/state.safetensors    weights, EMA, optimizer state; names without prefixes
                                            state.json           everything else; checksum of the tensors
                                     step-00000417-interrupted/

A checkpoint is written into a hidden sibling folder, flushed to the disk and renamed. *Regular* ones are those of the
cadence, which a roll-back returns to; an interrupted run leaves one more, on which a roll-back must not depend.
`keep` counts the regular ones; the newest of all is never removed. Only plain tensors and JSON are read: loading runs
no code.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

FORMAT_VERSION = 1
TENSORS, STATE = "state.safetensors", "state.json"
_NAME = re.compile(r"step-(\d+)(-interrupted)?")
_log = logging.getLogger(__name__)


class CheckpointError(RuntimeError):
    """A checkpoint can't be written, or must not be used; the message names the path and the remedy."""


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    step: int
    regular: bool
    tensors: dict[str, Tensor]
    state: dict[str, Any]


class CheckpointFolder:
    """The checkpoints of one run. Opening it removes what a killed save left behind.

    Args:
        folder: of this run only; its name carries `run_hash`.
        run_hash: of everything that determines the run, see `identity`.
        keep: number of regular checkpoints to keep, at least 1 (there is no "all" and no "none").
    """

    def __init__(self, folder: Path, run_hash: str, keep: int):
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}: a run without a checkpoint can't be resumed")
        self.folder, self.run_hash, self.keep = Path(folder), run_hash, keep
        for leftover in self.folder.glob(".writing-*"):
            shutil.rmtree(leftover, ignore_errors=True)  # all processes of a run open the folder at once

    def save(self, step: int, tensors: dict[str, Tensor], state: dict[str, Any], *, regular: bool) -> Path:
        """Writes one checkpoint, then removes the ones that are no longer needed.

        Raises:
            CheckpointError: nothing could be written (disk full, folder read-only); older checkpoints are untouched.
        """
        final = self.folder / f"step-{step:08d}{'' if regular else '-interrupted'}"
        temporary = self.folder / f".writing-{final.name}"
        try:
            temporary.mkdir(parents=True)
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, temporary / TENSORS)
            content = {"format_version": FORMAT_VERSION, "run_hash": self.run_hash, "step": step}
            content |= {"checksum": _checksum(temporary / TENSORS), "state": state}
            (temporary / STATE).write_text(json.dumps(content, allow_nan=False))
            _move_into_place(temporary, final)
        except (OSError, SafetensorError) as error:
            raise CheckpointError(self._explain(final, tensors, error)) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._rotate(written=final)
        return final

    def newest(self, *, regular_only: bool = False) -> Checkpoint | None:
        """The newest readable checkpoint; a broken one is set aside with a message.

        Raises:
            CheckpointError: the folder holds checkpoints of another run, or of an unknown format.
        """
        broken = 0
        for step, regular, folder in reversed(self._found()):
            if regular_only and not regular:
                continue
            try:
                return self._read(step, regular, folder)
            except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
                self._set_aside(folder, error)
                broken += 1
        if broken:
            _log.warning("%s: no checkpoint can be read, this run starts at step 0", self.folder)
        return None

    def keep_only_newest(self) -> None:
        """For a finished run: its end stays, in case that the command is killed before its outs are recorded."""
        for _, _, folder in self._found()[:-1]:
            shutil.rmtree(folder)

    def _found(self) -> list[tuple[int, bool, Path]]:
        """(step, is regular, folder), by the number of the step: as text, 9900 comes after 10000."""
        if not self.folder.is_dir():
            return []
        matches = ((_NAME.fullmatch(path.name), path) for path in self.folder.iterdir())
        return sorted((int(match[1]), match[2] is None, path) for match, path in matches if match)

    def _read(self, step: int, regular: bool, folder: Path) -> Checkpoint:
        content = json.loads((folder / STATE).read_text())
        if content["format_version"] != FORMAT_VERSION:
            raise CheckpointError(
                f"{folder}: checkpoint format {content['format_version']} is unknown, this version reads "
                f"{FORMAT_VERSION}; remove the folder to start anew"
            )
        if content["run_hash"] != self.run_hash:
            raise CheckpointError(
                f"{folder}: belongs to run {content['run_hash']}, not to {self.run_hash} (other parameters, data or "
                f"code); remove {self.folder} or use another folder"
            )
        if content["step"] != step:
            raise ValueError(f"says step {content['step']}")
        if content["checksum"] != _checksum(folder / TENSORS):
            raise ValueError("checksum of the tensors differs")
        return Checkpoint(folder, step, regular, load_file(folder / TENSORS), content["state"])

    def _set_aside(self, folder: Path, error: Exception) -> None:
        aside = folder.with_name(f"broken-{folder.name}")
        shutil.rmtree(aside, ignore_errors=True)
        folder.rename(aside)
        _log.warning("checkpoint %s can't be read (%s): set aside as %s", folder.name, error, aside)

    def _rotate(self, written: Path) -> None:
        found = self._found()
        kept = {*[folder for _, regular, folder in found if regular][-self.keep :], found[-1][2], written}
        for _, _, folder in found:
            if folder not in kept:
                shutil.rmtree(folder)

    def _explain(self, final: Path, tensors: dict[str, Tensor], error: Exception) -> str:
        needed = num_bytes(tensors)
        return (
            f"{final}: can't write the checkpoint ({error}); it needs {needed:,} bytes, free: "
            f"{free_bytes(self.folder):,}. The checkpoints before it are unharmed: make room, then run again."
        )


def num_bytes(tensors: dict[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def free_bytes(folder: Path) -> int:
    """Free space where `folder` is, or is going to be."""
    existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(existing).free


def check_space(folder: Path, needed: int) -> None:
    """Refuses before the work what would fail in its middle.

    Raises:
        CheckpointError: fewer than `needed` bytes are free.
    """
    free = free_bytes(folder)
    if free < needed:
        raise CheckpointError(f"{folder}: the checkpoints need {needed:,} bytes, free: {free:,}; make room first")


def _checksum(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()


def _move_into_place(temporary: Path, final: Path) -> None:
    """Renames a complete folder; flushed before and after, so that a power cut shows all of it or nothing."""
    for path in (*temporary.iterdir(), temporary):
        _flush(path)
    if final.exists():  # an interrupted run's, written again at the same step
        shutil.rmtree(final)
    temporary.rename(final)
    _flush(final.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
