import json
import math

import numpy as np
import pytest
import torch

from tests.benchmarks.reproduction.ladder import Rung, main, of_some_users, run_rung, rungs

CPU = torch.device("cpu")


def test_a_rung_learns_and_is_not_run_twice(small_world, tmp_path):
    rung = Rung(width=16, depth=1, share=1.0)
    result = run_rung(small_world, tmp_path, rung, CPU)
    assert result["loss"] < math.log(80) - 1
    assert result["recall@5"] > 0.8
    assert result["num_events"] == int(
        (small_world.order("given").train_end - small_world.order("given").offsets[:-1]).sum()
    )
    assert run_rung(small_world, tmp_path, rung, CPU) == result


def test_a_wider_rung_has_more_weights_and_less_data_fewer_events(small_world, tmp_path):
    narrow = run_rung(small_world, tmp_path, Rung(width=8, depth=1, share=0.25), CPU)
    wide = run_rung(small_world, tmp_path, Rung(width=16, depth=2, share=0.5), CPU)
    assert wide["num_weights"] > 3 * narrow["num_weights"]
    assert wide["num_events"] > 1.5 * narrow["num_events"]


def test_a_larger_share_holds_the_users_of_a_smaller_one(small_world):
    sequences = small_world.order("given")
    few, many = (of_some_users(sequences, share, 0) for share in (0.25, 0.5))
    trained = [np.flatnonzero(part.train_end > part.offsets[:-1]) for part in (few, many)]
    assert set(trained[0]) < set(trained[1])
    np.testing.assert_array_equal(few.validation_end, sequences.validation_end)


def test_the_ladder_has_every_combination_and_the_longest_first():
    every = rungs((8, 16), (1, 2), (0.5, 1.0))
    assert len(set(every)) == 8
    assert every[0] == Rung(width=16, depth=2, share=1.0)


def test_the_command_line_runs_what_is_missing(small_world, tmp_path, capsys):
    small_world.save(tmp_path / "arrays")
    arguments = [str(tmp_path / "arrays"), "--out", str(tmp_path / "runs"), "--device", "cpu"]
    sizes = ["--widths", "8", "--depths", "1", "--shares", "0.25", "0.5"]
    assert main([*arguments, *sizes]) == 0
    results = [json.loads(path.read_text()) for path in (tmp_path / "runs").glob("*.json")]
    assert sorted(result["share"] for result in results) == [0.25, 0.5]
    assert capsys.readouterr().out.count("\n") == 2


def test_a_rung_out_of_range_is_refused():
    with pytest.raises(ValueError, match="share in"):
        Rung(width=8, depth=1, share=1.5)
