"""Every error ends with its exit code."""

import pytest
import typer
from typer.testing import CliRunner

from pipelines.cli.main import PlainErrors
from pipelines.engine.errors import (
    AlarmError,
    ClusterError,
    RankLostError,
    RefusedError,
    UnstableTrainingError,
    WorkspaceBusyError,
)

app = typer.Typer(cls=PlainErrors)
ERRORS = {
    "value": (ValueError("no file"), 2),
    "refused": (RefusedError("worse"), 3),
    "alarm": (AlarmError("drift"), 5),
    "unstable": (UnstableTrainingError("not finite"), 70),
    "memory": (MemoryError("out of memory"), 71),
    "rank": (RankLostError("rank 1 of 2"), 72),
    "cluster": (ClusterError("nothing answers"), 72),
    "disk": (OSError(28, "No space left on device"), 74),
    "busy": (WorkspaceBusyError("in use"), 75),
    "interrupted": (KeyboardInterrupt(), 130),
    "other": (ZeroDivisionError("bug"), 1),
    "own": (typer.Exit(3), 3),
    "fine": (None, 0),
}


@app.command()
def fail(name: str) -> None:
    error = ERRORS[name][0]
    if error is not None:
        raise error


@app.command()
def other() -> None:
    """Two commands make a group."""


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_ends_with_its_code(name: str) -> None:
    assert CliRunner().invoke(app, ["fail", name]).exit_code == ERRORS[name][1]


def test_an_unknown_option_is_an_invalid_command() -> None:
    assert CliRunner().invoke(app, ["fail", "--no-such"]).exit_code == 2
