import errno
import os
import random
import re

import pytest
import torch

from recsys.training import checkpoint as checkpoint_module
from recsys.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    checkpoint_paths,
    load_checkpoint,
    load_latest,
    save_checkpoint,
)


def checkpoint_of(step):
    values = {"weight": torch.full((40, 25), float(step)), "ids": torch.tensor([step])}
    return Checkpoint(
        step=step, tensors={"model": values, "best": {}}, state={"loss": 0.1 + 0.2, "name": "run"}
    )


def test_last_two_are_kept_bit_for_bit(tmp_path):
    saved = [checkpoint_of(step) for step in (5, 10, 900, 1000)]
    for one in saved:
        save_checkpoint(tmp_path, one)
    kept = ["step-000000900", "step-000001000"]
    assert [path.name for path in checkpoint_paths(tmp_path)] == kept
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
    loaded = load_checkpoint(tmp_path / kept[1])
    assert (loaded.step, loaded.state, loaded.tensors["best"]) == (1000, saved[3].state, {})
    for name, value in saved[3].tensors["model"].items():
        torch.testing.assert_close(loaded.tensors["model"][name], value, rtol=0, atol=0)


def test_every_cut_and_flip_is_refused_and_the_one_before_loads(tmp_path, caplog):
    save_checkpoint(tmp_path, checkpoint_of(1))
    newest = save_checkpoint(tmp_path, checkpoint_of(2))
    draw = random.Random(0)
    for file in sorted(newest.iterdir()):
        whole = file.read_bytes()
        damages = [b"", *(whole[: draw.randrange(len(whole))] for _ in range(8))]
        for _ in range(16):
            flipped = bytearray(whole)
            flipped[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
            # White space in JSON carries nothing: a manifest may lose some and be the same.
            if bytes(flipped).split() != whole.split():
                damages.append(bytes(flipped))
        for damaged in damages:
            file.write_bytes(damaged)
            with pytest.raises(CheckpointError, match=re.escape(str(newest))):
                load_checkpoint(newest)
            assert load_latest(tmp_path).step == 1
        file.write_bytes(whole)
    assert "checkpoint_refused" in caplog.text
    assert load_latest(tmp_path).step == 2


def test_format_of_another_version_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint_module, "FORMAT", 99)
    path = save_checkpoint(tmp_path, checkpoint_of(2))
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="has format 99, this version reads 1"):
        load_checkpoint(path)


@pytest.mark.parametrize("failing_call", range(5))
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_failed_flush_is_loud_and_keeps_the_one_before(tmp_path, monkeypatch, failing_call, code):
    save_checkpoint(tmp_path, checkpoint_of(1))
    calls = 0
    fsync = os.fsync

    def failing_fsync(descriptor):
        nonlocal calls
        calls += 1
        if calls == failing_call + 1:
            raise OSError(code, os.strerror(code))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing_fsync)
    with pytest.raises(OSError, match="step 2 was NOT saved"):
        save_checkpoint(tmp_path, checkpoint_of(2))
    monkeypatch.undo()
    assert not list(tmp_path.glob(".*"))
    # The last flush is that of the folder, after the rename: the checkpoint may be there, whole.
    assert load_latest(tmp_path).step == (2 if failing_call == 4 else 1)


def test_only_damaged_checkpoints_do_not_start_from_nothing(tmp_path):
    path = save_checkpoint(tmp_path, checkpoint_of(2))
    (path / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks model\.safetensors.*delete that folder"):
        load_latest(tmp_path)
