import errno
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from pipelines.engine.artifacts import Manifest, begin, check_files, commit, sweep
from tests.pipelines.engine.conftest import in_a_fork, kill


def manifest(config: dict[str, object] | None = None) -> Manifest:
    return Manifest(
        stage="build",
        inputs={"events": "0" * 64},
        config=config or {"seed": 1},
        versions={"numpy": "2"},
        rows={"out": 2},
        files={},
    )


def write_artifact(final: Path, text: str, config: dict[str, object] | None = None) -> Manifest:
    partial = begin(final)
    (partial / "deep").mkdir()
    (partial / "deep" / "rows.txt").write_text(text)
    (partial / "more.txt").write_text(text * 3)
    return commit(partial, final, manifest=manifest(config), run={"seconds": 1.0})


def look_up_content(final: Path) -> tuple[str, str]:
    found = Manifest.load(final)
    assert found is not None
    check_files(final, found, contents=True)
    return (final / "deep" / "rows.txt").read_text(), (final / "more.txt").read_text()


def test_manifest_says_what_it_was_made_from_and_what_came_out(tmp_path):
    first = write_artifact(tmp_path / "build", "text")
    same_output = write_artifact(tmp_path / "build", "text", {"seed": 2})
    other_output = write_artifact(tmp_path / "build", "other")
    assert first.making != same_output.making
    assert first.output == same_output.output
    assert first.making == other_output.making
    assert first.output != other_output.output
    assert Manifest.load(tmp_path / "build") == other_output
    write_artifact(tmp_path / "again", "other")
    manifests = [tmp_path / name / "manifest.json" for name in ("build", "again")]
    assert manifests[0].read_bytes() == manifests[1].read_bytes()


def killed_at(step: int, action: Callable[[], object]) -> Callable[[], None]:
    """Wrap the calls that touch the disk, and SIGKILL just before the one numbered ``step``."""

    def run() -> None:
        calls = 0

        def counted(original: Callable[..., object]) -> Callable[..., object]:
            def call(*args: object, **kwargs: object) -> object:
                nonlocal calls
                if calls == step:
                    kill()
                calls += 1
                return original(*args, **kwargs)

            return call

        for name in ("open", "fsync", "rename", "replace", "rmdir", "unlink", "mkdir"):
            setattr(os, name, counted(getattr(os, name)))
        action()

    return run


def test_killed_anywhere_leaves_the_old_artifact_or_the_new_one(tmp_path):
    outcomes = []
    for step in range(200):
        folder = tmp_path / str(step)
        folder.mkdir()
        write_artifact(folder / "build", "old")
        code = in_a_fork(killed_at(step, lambda: write_artifact(folder / "build", "new")))  # noqa: B023
        sweep(folder)
        rows, more = look_up_content(folder / "build")
        assert (rows, more) in {("old", "oldoldold"), ("new", "newnewnew")}
        assert [path.name for path in folder.iterdir()] == ["build"]
        outcomes.append((code, rows))
        if code == 0:
            break
    assert (-signal.SIGKILL, "old") in outcomes
    assert (-signal.SIGKILL, "new") in outcomes
    assert outcomes[-1] == (0, "new")


def test_failed_fsync_is_not_saved(tmp_path, monkeypatch):
    """Whichever flush fails, the error rises; only the last ones come after the new is whole."""
    fsync, flushes, fails_at = os.fsync, 0, -1
    outcomes = []

    def failing(descriptor: int) -> None:
        nonlocal flushes
        flushes += 1
        if flushes - 1 == fails_at:
            raise OSError(errno.EIO, "I/O error")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    write_artifact(tmp_path / "whole", "new")
    number = flushes
    assert number > 3
    for place in range(number):
        folder = tmp_path / str(place)
        folder.mkdir()
        write_artifact(folder / "build", "old")
        flushes, fails_at = 0, place
        with pytest.raises(OSError, match="I/O error"):
            write_artifact(folder / "build", "new")
        fails_at = -1
        sweep(folder)
        assert [path.name for path in folder.iterdir()] == ["build"]
        outcomes.append(look_up_content(folder / "build"))
    assert outcomes.count(("old", "oldoldold")) >= number - 3
    assert set(outcomes) == {("old", "oldoldold"), ("new", "newnewnew")}
    assert outcomes == sorted(outcomes, reverse=True)


def test_altered_and_missing_files_are_named(tmp_path):
    found = write_artifact(tmp_path / "build", "text")
    (tmp_path / "build/deep/rows.txt").write_text("tixt")
    check_files(tmp_path / "build", found)
    with pytest.raises(ValueError, match=r"rows\.txt was altered: its sha256 is .* delete .*build"):
        check_files(tmp_path / "build", found, contents=True)
    (tmp_path / "build/more.txt").unlink()
    with pytest.raises(ValueError, match=r"more\.txt is missing; delete"):
        check_files(tmp_path / "build", found)


def test_broken_manifest_says_what_to_delete(tmp_path):
    write_artifact(tmp_path / "build", "text")
    (tmp_path / "build/manifest.json").write_text(json.dumps({"stage": "build"}))
    with pytest.raises(ValueError, match=r"not a stage manifest .* delete .*build and run again"):
        Manifest.load(tmp_path / "build")


def test_reserved_names_are_refused(tmp_path):
    partial = begin(tmp_path / "build")
    (partial / "run.json").write_text("{}")
    with pytest.raises(ValueError, match=r"wrote \['run\.json'\], which are reserved"):
        commit(partial, tmp_path / "build", manifest=manifest(), run={})
