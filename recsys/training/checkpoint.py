"""Checkpoints that survive a kill, a full disk and flipped bits.

A checkpoint is a directory ``step-000001200`` of safetensors files and a ``manifest.json`` with the
sha256 of each. It is written under a hidden temporary name, every file and the directory are
flushed to the disk, and one rename publishes it; so a checkpoint is there whole or not at all.
Loading verifies every digest before a byte is used.
"""

from __future__ import annotations

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from recsys.data.durable import digest_of_file, fsync, write_durably

MANIFEST = "manifest.json"
TEMPORARY_PREFIX = ".writing-"
FORMAT = 1

logger = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint is damaged or belongs to another run."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Everything a run needs to resume as if it had never stopped."""

    step: int
    """Number of steps done."""
    tensors: Mapping[str, Mapping[str, Tensor]]
    """File name without suffix -> tensor name -> tensor, all on CPU when loaded."""
    state: Mapping[str, Any]
    """Counters and settings, as JSON holds them."""


def checkpoint_paths(directory: Path) -> list[Path]:
    """List the published checkpoints, oldest first."""
    return sorted(path for path in directory.glob("step-*") if path.is_dir())


def prepare_directory(directory: Path) -> None:
    """Make the folder and try to write in it, before hours of training depend on that.

    Raises:
        OSError: If checkpoints cannot be written there.
    """
    probe = directory / f"{TEMPORARY_PREFIX}probe"
    try:
        probe.mkdir(parents=True, exist_ok=True)
        probe.rmdir()
    except OSError as error:
        raise OSError(
            f"checkpoints cannot be written in {directory}: {error}; "
            "choose another folder or change its permissions"
        ) from error


def save_checkpoint(directory: Path, checkpoint: Checkpoint, *, keep: int = 2) -> Path:
    """Write a checkpoint durably, then delete all but the last ``keep``.

    Returns only when the bytes are on the disk; on any failure the earlier checkpoints stay.

    Raises:
        OSError: If anything could not be written or flushed.
    """
    directory.mkdir(parents=True, exist_ok=True)
    sweep_temporaries(directory)
    final = directory / f"step-{checkpoint.step:09d}"
    temporary = directory / f"{TEMPORARY_PREFIX}{final.name}"
    try:
        temporary.mkdir()
        _write_files(temporary, checkpoint)
        if final.exists():
            # Left damaged by an earlier run; a directory cannot be renamed over another.
            _discard(final)
        temporary.rename(final)
        fsync(directory)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise OSError(
            f"checkpoint of step {checkpoint.step} was NOT saved in {directory}: {error}; "
            "free space or mend the disk, then start the run again to resume"
        ) from error
    for old in checkpoint_paths(directory)[:-keep]:
        _discard(old)
    return final


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one checkpoint, verified.

    Raises:
        CheckpointError: If a file is missing, altered or cut short.
    """
    manifest = _read_manifest(path)
    tensors: dict[str, dict[str, Tensor]] = {}
    for name, recorded in manifest["files"].items():
        file = path / name
        if not file.is_file():
            raise CheckpointError(f"checkpoint {path} lacks {name}; delete it to use an older one")
        digest = digest_of_file(file)
        if digest != recorded["sha256"]:
            raise CheckpointError(
                f"checkpoint {path} is damaged: {name} ({file.stat().st_size} bytes) has sha256 "
                f"{digest}, its manifest says {recorded['sha256']} ({recorded['bytes']} bytes)"
            )
        tensors[file.stem] = load_file(file)
    return Checkpoint(step=manifest["step"], tensors=tensors, state=manifest["state"])


def load_latest(directory: Path) -> Checkpoint | None:
    """Read the newest checkpoint that verifies; None where there is none at all.

    Sweeps what killed writers left. A damaged checkpoint is logged and passed over.

    Raises:
        CheckpointError: If there are checkpoints and all are damaged.
    """
    sweep_temporaries(directory)
    refused: list[str] = []
    for path in reversed(checkpoint_paths(directory)):
        try:
            return load_checkpoint(path)
        except CheckpointError as error:
            logger.warning("checkpoint_refused path=%s reason=%s", path, error)
            refused.append(str(error))
    if refused:
        raise CheckpointError(
            f"no checkpoint in {directory} can be used: {'; '.join(refused)}; "
            "delete that folder to train from the start"
        )
    return None


def sweep_temporaries(directory: Path) -> None:
    """Delete the leftovers of a killed writer; one writer per directory at a time."""
    for path in directory.glob(f"{TEMPORARY_PREFIX}*"):
        shutil.rmtree(path)


def random_states() -> dict[str, Tensor]:
    """Copy the states of torch's generators, on CPU and every CUDA device in use."""
    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            states[f"cuda.{index}"] = state
    return states


def set_random_states(states: Mapping[str, Tensor]) -> None:
    """Put torch's generators back as ``random_states`` found them."""
    torch.set_rng_state(states["cpu"])
    for name, state in states.items():
        if name.startswith("cuda."):
            torch.cuda.set_rng_state(state, int(name.removeprefix("cuda.")))


def _write_files(folder: Path, checkpoint: Checkpoint) -> None:
    files: dict[str, dict[str, Any]] = {}
    for stem, named in checkpoint.tensors.items():
        file = folder / f"{stem}.safetensors"
        save_file({name: value.detach().contiguous() for name, value in named.items()}, file)
        fsync(file)
        files[file.name] = {"sha256": digest_of_file(file), "bytes": file.stat().st_size}
    manifest = {
        "format": FORMAT,
        "step": checkpoint.step,
        "files": files,
        "state": dict(checkpoint.state),
    }
    body = json.dumps(manifest, sort_keys=True)
    document = {"sha256": hashlib.sha256(body.encode()).hexdigest(), "manifest": manifest}
    write_durably(folder / MANIFEST, json.dumps(document, sort_keys=True, indent=1))


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        document = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
        manifest: dict[str, Any] = document["manifest"]
        body = json.dumps(manifest, sort_keys=True)
        intact = document["sha256"] == hashlib.sha256(body.encode()).hexdigest()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"checkpoint {path} has no readable {MANIFEST}: {error!r}") from error
    if not intact:
        raise CheckpointError(f"checkpoint {path} is damaged: {MANIFEST} does not match its digest")
    if manifest["format"] != FORMAT:
        raise CheckpointError(
            f"checkpoint {path} has format {manifest['format']}, this version reads {FORMAT}; "
            "train from the start or with the version that wrote it"
        )
    return manifest


def _discard(path: Path) -> None:
    """Delete a checkpoint such that a kill midway leaves no half of it under its name."""
    doomed = path.with_name(f"{TEMPORARY_PREFIX}deleting-{path.name}")
    path.rename(doomed)
    shutil.rmtree(doomed)
