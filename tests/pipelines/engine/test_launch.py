"""A training stage on two ranks: the same weights as here, also after a kill; errors that help."""

import json
import os
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from pipelines.cli.rank import LogFile
from pipelines.config.run import RunConfig
from pipelines.config.trainings import TorchrunConfig
from pipelines.engine.errors import RankLostError, UnstableTrainingError
from pipelines.engine.launch import ERROR, STEP, explained, passed_on
from pipelines.engine.run_log import RunLog
from pipelines.engine.runner import run_stages
from pipelines.engine.torchrun import Failure, num_ranks
from tests.pipelines.engine.two_groups import (
    CHOSEN,
    assert_ends_where_one_process_ends,
    assert_names_the_killed_rank,
    error_of_a_killed_rank,
    ranks_below,
    settings,
)


@pytest.fixture(scope="module")
def killed(folder: Path) -> str:
    """The error of a run whose second rank was killed, before a run that resumed."""
    config = settings(folder, "torchrun")
    error = error_of_a_killed_rank(config, 1, lambda _: ranks_below(os.getpid())[1])
    run_stages(CHOSEN, config)
    return error


def test_a_killed_rank_is_named_with_its_signal_and_its_log(killed: str) -> None:
    assert_names_the_killed_rank(killed)


def test_ranks_that_resumed_after_a_kill_end_where_one_process_ends(
    folder: Path, killed: str
) -> None:
    assert_ends_where_one_process_ends(folder, "torchrun", engine="torchrun", ranks=2)
    # So a run here continues from artefacts that ranks have made.
    here = replace(settings(folder, "torchrun"), engine="local")
    assert all(outcome.skipped for outcome in run_stages(CHOSEN, here))


def noted(folder: Path, rank: int, kind: str, message: str) -> None:
    error = {"rank": rank, "time": rank, "kind": kind, "message": message}
    (folder / ERROR.format(rank)).write_text(json.dumps(error))


def test_errors_of_ranks_are_raised_as_what_they_are(tmp_path: Path) -> None:
    noted(tmp_path, 1, "UnstableTrainingError", "loss was not finite")
    noted(tmp_path, 0, "", "Connection closed by peer")
    found = explained("refit", tmp_path, 2, {0: Failure(1, 5, "a"), 1: Failure(1, 6, "a")})
    assert isinstance(found, UnstableTrainingError)
    assert str(found) == "loss was not finite"


def test_ranks_that_waited_too_long_say_who_is_behind(tmp_path: Path) -> None:
    (tmp_path / STEP.format(0)).write_text("after step 40 of 90")
    (tmp_path / STEP.format(1)).write_text("after step 20 of 90")
    noted(tmp_path, 0, "", "Timed out waiting 60000ms for recv operation to complete")
    found = explained("refit", tmp_path, 2, {0: Failure(1, 5, "a")})
    assert isinstance(found, RankLostError)
    assert "rank 0 after step 40 of 90; rank 1 after step 20 of 90" in str(found)
    assert "torchrun.wait_seconds" in str(found)


def test_any_other_error_names_its_rank(tmp_path: Path) -> None:
    noted(tmp_path, 1, "", "no kernel image is available")
    found = explained("refit", tmp_path, 2, {1: Failure(1, 6, "a")})
    assert "rank 1 of 2 failed in stage refit: no kernel image is available" in str(found)


def test_what_the_first_rank_logs_is_passed_on_line_by_line(tmp_path: Path) -> None:
    path, kept = tmp_path / "logged.jsonl", Mock(spec=RunLog)
    assert passed_on(path, 0, kept) == 0
    log = LogFile(path)
    log.log(7, loss=0.25)
    log.metrics({"test/ndcg@10": 0.1})
    whole = path.read_text()
    path.write_text(whole[:-9])
    place = passed_on(path, 0, kept)
    kept.metrics.assert_not_called()
    path.write_text(whole)
    log.tags({"served": "yes"})
    passed_on(path, place, kept)
    kept.log.assert_called_once_with(7, loss=0.25)
    kept.metrics.assert_called_once_with({"test/ndcg@10": 0.1})
    kept.tags.assert_called_once_with({"served": "yes"})


def test_ranks_are_the_gpus_or_two_processes(monkeypatch, tmp_path: Path) -> None:
    config = RunConfig(workspace=tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    assert num_ranks(config) == 4
    assert num_ranks(replace(config, torchrun=TorchrunConfig(processes=3))) == 3
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert num_ranks(config) == 2


def test_impossible_engines_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="processes must be >= 1, or 0"):
        TorchrunConfig(processes=-1)
    with pytest.raises(ValueError, match="wait_seconds must be at least 5"):
        TorchrunConfig(wait_seconds=1)
