import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from recsys.data.durable import (
    digest_of_file,
    digest_once,
    digests_once,
    locked,
    new_directory,
    replace_file,
    shared,
    write_durably,
)


def test_failed_replacement_keeps_the_old_file_and_leaves_nothing_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state.json"
    write_durably(path, "old")

    def half(partial: Path) -> None:
        partial.write_text("ne")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="No space left"):
        replace_file(path, half)

    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output error"):
            write_durably(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


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


def test_a_lock_is_shared_by_many_and_excludes_those_who_hold_it_alone(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with shared(path) as first, shared(path) as second, locked(path, wait=False) as alone:
        assert (first, second, alone) == (True, True, False)
    with locked(path) as alone, shared(path) as beside:
        assert (alone, beside) == (True, False)
    with locked(path, wait=0.05) as alone, locked(path, wait=0.05) as other:
        assert (alone, other) == (True, False)
