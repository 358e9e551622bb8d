"""One line a command, whichever way it ends."""

import signal
from datetime import UTC, datetime, timedelta

import pytest
import typer

from pipelines.engine import history as history_module
from pipelines.engine.errors import RefusedError, WorkspaceBusyError
from pipelines.engine.history import HISTORY, KILLED, read_history, recorded
from tests.pipelines.engine.conftest import in_a_fork, kill


def test_a_command_that_ends_well_leaves_one_line(tmp_path):
    with recorded(tmp_path, "update") as recording:
        recording.reasons.append("2 new partitions")
        recording.details["partitions"] = ["2026-11-21", "2026-11-22"]
    (line,) = read_history(tmp_path)
    assert (line.command, line.exit_code, line.outcome) == ("update", 0, "done")
    assert line.reasons == ["2 new partitions"]
    assert line.details == {"partitions": ["2026-11-21", "2026-11-22"]}
    assert 0 <= line.seconds < 60
    age = datetime.now(UTC) - datetime.fromisoformat(line.time)
    assert timedelta(0) <= age < timedelta(minutes=1)
    assert list((tmp_path / "running").iterdir()) == []


@pytest.mark.parametrize(
    ("error", "code", "outcome", "reasons"),
    [
        (ValueError("no file a.csv"), 2, "failed", ["no file a.csv"]),
        (RefusedError("refused:\n  ndcg fell"), 3, "refused", ["refused:", "ndcg fell"]),
        (WorkspaceBusyError("in use"), 75, "busy", ["in use"]),
        (
            OSError(28, "No space left", "a.npy"),
            74,
            "failed",
            ["[Errno 28] No space left: 'a.npy'"],
        ),
        (KeyboardInterrupt(), 130, "failed", ["interrupted"]),
        (ZeroDivisionError("division by zero"), 1, "failed", ["division by zero"]),
        (typer.Exit(5), 5, "done", []),
        (typer.Exit(0), 0, "done", []),
        (SystemExit(4), 4, "failed", ["4"]),
    ],
)
def test_an_error_is_recorded_with_the_code_it_ends_with(tmp_path, error, code, outcome, reasons):
    with pytest.raises(type(error)), recorded(tmp_path, "run"):
        raise error
    (line,) = read_history(tmp_path)
    assert (line.exit_code, line.outcome, line.reasons) == (code, outcome, reasons)


def test_a_disk_that_is_full_does_not_hide_the_first_error(tmp_path, monkeypatch, capfd):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(history_module, "append_line", full)
    with pytest.raises(ValueError, match="first"), recorded(tmp_path, "run"):
        raise ValueError("first")
    assert read_history(tmp_path) == []
    with pytest.raises(OSError, match="No space left"), recorded(tmp_path, "run"):
        pass


def test_a_torn_line_is_left_out_and_swallows_nothing(tmp_path):
    with recorded(tmp_path, "run"):
        pass
    with (tmp_path / HISTORY).open("a") as file:
        file.write('{"time": "2026-11-')
    with recorded(tmp_path, "gc"):
        pass
    assert [line.command for line in read_history(tmp_path)] == ["run", "gc"]


def test_a_place_that_is_known_late_gets_the_line(tmp_path):
    with recorded(None, "run") as recording:
        recording.at(tmp_path / "made")
        (tmp_path / "made").mkdir()
    assert [line.command for line in read_history(tmp_path / "made")] == ["run"]
    with recorded(None, "run"):
        pass
    with pytest.raises(ValueError), recorded(tmp_path / "typo", "status"):  # noqa: PT011
        raise ValueError
    assert not (tmp_path / "typo").exists()


def test_a_killed_command_is_recorded_by_the_next(tmp_path):
    def die() -> None:
        with recorded(tmp_path, "update"):
            kill()

    assert in_a_fork(die) == -signal.SIGKILL
    assert read_history(tmp_path) == []
    # The one that runs is not taken for a killed one.
    with recorded(tmp_path, "run"), recorded(tmp_path, "status"):
        pass
    lines = read_history(tmp_path)
    assert [(line.command, line.exit_code) for line in lines] == [
        ("update", KILLED),
        ("status", 0),
        ("run", 0),
    ]
    assert lines[0].outcome == "failed"
    assert "killed" in lines[0].reasons[0]
