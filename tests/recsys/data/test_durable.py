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
)


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
