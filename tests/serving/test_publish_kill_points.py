"""kill -9 at every change that writing and publishing a bundle makes to the file system."""

import os
import shutil
import signal
import sys
from pathlib import Path

import pytest

from pipelines.publishing.promotion import note_release
from pipelines.publishing.write_release import write_release
from serving.bundle.load import load_bundle
from serving.bundle.manifest import publish
from serving.bundle.write import write_bundle
from tests.serving.synthetic_bundle import SyntheticSize, synthetic_parts

EVENTS = {"open", "os.rename", "os.symlink", "os.mkdir", "os.remove", "os.rmdir", "os.truncate"}


def release_new(bundles_dir: Path, parts) -> None:
    write_bundle(bundles_dir, parts, version="v2")
    publish(bundles_dir, "v2")


def release_again(bundles_dir: Path, parts) -> None:
    """What a forced release does: other parts under the name that is served."""
    fields = {"metrics": {}, "config_digest": "", "judge": lambda _directory: []}
    version = write_release(bundles_dir, parts, name="v1", **fields).version
    note_release(bundles_dir, version, promoted=True)


RELEASES = {"v2": release_new, "v1-2": release_again}


def killed(bundles_dir: Path, parts, release, kill_at: int) -> int:
    """Release in a child that dies at its kill_at-th change; return its status."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count = 0

    def kill_there(event: str, arguments: tuple) -> None:
        nonlocal count
        if event not in EVENTS or str(bundles_dir) not in f"{arguments[0]} {arguments[1:2]}":
            return
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            return
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    code = 1
    try:
        sys.addaudithook(kill_there)
        release(bundles_dir, parts)
        code = 0
    finally:
        os._exit(code)


@pytest.mark.slow
@pytest.mark.parametrize("new", RELEASES)
def test_current_is_the_old_bundle_or_the_new_one_whenever_the_publisher_dies(
    released, tmp_path, new
):
    (tmp_path / "parts").mkdir()
    parts = synthetic_parts(tmp_path / "parts", SyntheticSize(seed=1))
    kills, versions, digests = 0, [], set()
    bundles_dir, status = tmp_path / "bundles", -signal.SIGKILL
    while status != 0:
        shutil.rmtree(bundles_dir, ignore_errors=True)
        shutil.copytree(released, bundles_dir, symlinks=True)
        status = killed(bundles_dir, parts, RELEASES[new], kills + 1)
        loaded = {path.name: load_bundle(path) for path in bundles_dir.glob("bundle-*")}
        versions.append(loaded[(bundles_dir / "current").readlink().name].version)
        digests.add(loaded["bundle-v1"].digest)
        assert status in (0, -signal.SIGKILL)
        if status:
            kills += 1
            # The next attempt finds nothing in its way.
            if f"bundle-{new}" not in loaded or new != "v2":
                RELEASES[new](bundles_dir, parts)
            publish(bundles_dir, new)
            assert load_bundle(bundles_dir / "current").version == new
    assert kills > 30
    # Once it is the new one it stays the new one, and what was released is what it was.
    assert versions == sorted(versions)
    assert set(versions) == {"v1", new}
    assert len(digests) == 1
