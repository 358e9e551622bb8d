"""Files that survive a kill, tables of strings."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from recsys.data import threads
from recsys.data.durable import (
    Held,
    digest_of_file,
    digest_once,
    digests_once,
    locked,
    new_directory,
    shared,
)
from recsys.data.string_table import StringTable, write_string_table
from recsys.data.threads import side_by_side
from tests.recsys.testing.refusals import assert_refused


def test_directory_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    final = tmp_path / "bundle"
    (tmp_path / ".partial-bundle").mkdir()
    (tmp_path / ".partial-bundle" / "of a killed run").touch()

    def write_half() -> None:
        with new_directory(final) as partial:
            assert list(partial.iterdir()) == []
            (partial / "file").write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert list(tmp_path.iterdir()) == []
    with new_directory(final) as partial:
        (partial / "file").write_text("whole")
    assert [path.name for path in tmp_path.iterdir()] == ["bundle"]
    with (
        pytest.raises(ValueError, match="bundle exists and is never changed"),
        new_directory(final),
    ):
        pass


HOLD = """
import sys, time
from pathlib import Path
from recsys.data.durable import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_lock_excludes_other_processes_and_ends_with_its_own(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    path.write_text("process 1")
    child = subprocess.Popen([sys.executable, "-c", HOLD, str(path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    with child, child.stdout:
        assert child.stdout.readline() == b"held\n"
        with locked(path, wait=False) as held:
            assert not held
        killer = threading.Timer(0.3, child.send_signal, [signal.SIGKILL])
        killer.start()
        with locked(path) as held:
            assert held
            assert child.wait(5) == -signal.SIGKILL
    with locked(path, wait=False) as held:
        assert held
    assert path.read_text() == "process 1"


def test_a_file_is_hashed_once_until_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = []

    def counted(path: Path) -> str:
        hashed.append(path)
        return digest_of_file(path)

    monkeypatch.setattr("recsys.data.durable.digest_of_file", counted)
    path = tmp_path / "weights"
    path.write_bytes(b"first")
    first = digest_once(path)
    # It changed a moment ago, and may change again within one tick of the clock.
    assert digest_once(path) == first
    assert len(hashed) == 2

    monkeypatch.setattr("recsys.data.durable.SETTLED_NS", -(10**12))
    assert [digest_once(path), digest_once(path)] == [first, first]
    assert len(hashed) == 3
    state = path.stat()
    time.sleep(0.02)
    path.write_bytes(b"other")
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert digest_once(path) == digest_of_file(path) != first
    replaced = tmp_path / "replaced"
    replaced.write_bytes(b"third")
    replaced.replace(path)
    assert digests_once([path, path]) == [digest_of_file(path)] * 2


def test_a_written_table_opens_again_and_finds_rows(tmp_path: Path) -> None:
    write_string_table(tmp_path, "item_ids", ["", "caffè", "日本", "B00\N{PILE OF POO}"])
    table = StringTable.open(tmp_path, "item_ids")
    assert table.row_of("日本") == 2
    assert table.row_of("absent") is None
    assert len(table) == 4


def test_texts_that_are_no_texts_are_refused(tmp_path: Path) -> None:
    def read(content: bytes, *offsets: int) -> list[str]:
        return list(StringTable(np.frombuffer(content, np.uint8), np.array(offsets)))

    assert_refused(
        {
            "string 1 of table 'titles'": lambda: write_string_table(
                tmp_path, "titles", ["fine", "\ud800"]
            ),
            "begins inside a character": lambda: read("aé".encode(), 0, 2, 3),
            "utf-8": lambda: read(b"a\xff", 0, 2),
        }
    )


@given(
    st.lists(st.text(alphabet="ab\u00e9\u4e16", max_size=2), max_size=9),
    st.lists(st.text(alphabet="ab\u00e9\u4e16", max_size=2), max_size=9),
)
def test_an_extended_table_is_as_if_it_had_been_built_whole(old: list[str], new: list[str]) -> None:
    whole, grown = StringTable.from_strings(old + new), StringTable.from_strings(old).extended(new)
    assert list(grown) == list(whole) == old + new
    assert [grown.row_of(text) for text in [*old, *new, "absent"]] == [
        whole.row_of(text) for text in [*old, *new, "absent"]
    ]
    assert grown.first_repeated() == whole.first_repeated()
    repeated = [row for row, text in enumerate(old + new) if text in (old + new)[:row]]
    assert whole.first_repeated() == min(repeated, default=None)


def test_a_folder_that_is_held_cannot_be_taken_alone_nor_held_while_it_is_removed(
    tmp_path: Path,
) -> None:
    first, second = Held([tmp_path]), Held([tmp_path, tmp_path / "nowhere"])
    descriptor = os.open(tmp_path, os.O_RDONLY)

    def take_alone() -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with pytest.raises(BlockingIOError):
        take_alone()
    del first
    with pytest.raises(BlockingIOError):  # each holder counts
        take_alone()
    del second
    take_alone()
    with pytest.raises(ValueError, match="is being removed"):
        Held([tmp_path])
    os.close(descriptor)
    Held([tmp_path])


def test_a_lock_is_shared_by_many_and_excludes_those_who_hold_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with shared(path) as first, shared(path) as second, locked(path, wait=False) as alone:
        assert (first, second, alone) == (True, True, False)
    with locked(path) as alone, shared(path) as beside:
        assert (alone, beside) == (True, False)
    with locked(path, wait=0.05) as alone, locked(path, wait=0.05) as other:
        assert (alone, other) == (True, False)


@pytest.fixture(params=[1, 2])
def torch_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(threads.os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def test_results_are_in_order_and_have_no_gradients(torch_threads: int) -> None:
    weight = torch.ones(3, requires_grad=True)
    together = threading.Barrier(2, timeout=30)

    def make(part: int) -> torch.Tensor:
        if torch_threads == 1:
            # Two parts are on their way at a time.
            together.wait()
        assert torch.get_num_threads() == torch_threads
        return weight * part

    found = side_by_side(make, range(4))
    assert [one[0].item() for one in found] == [0, 1, 2, 3]
    assert not any(one.requires_grad for one in found)
    assert torch.get_num_threads() == torch_threads
    assert torch.is_grad_enabled()


def test_what_goes_wrong_in_a_part_is_raised(torch_threads: int) -> None:
    def make(part: int) -> int:
        if part == 2:
            raise ValueError("part 2")
        return part

    with pytest.raises(ValueError, match="part 2"):
        side_by_side(make, range(4))
