import json

import pytest

from pipelines.engine.artifacts import RunLog
from pipelines.training.train import Curve, read_records


def tell(curve: Curve, steps: list[int]) -> None:
    """Log what a training does: the loss of each step, every second one validated."""
    for step in steps:
        curve.log(step, loss=10.0 - step)
        if step % 2 == 0:
            curve.log(step, metric=step / 10)


@pytest.mark.parametrize("checkpoint", [0, 1, 2, 4, 5])
@pytest.mark.parametrize("ending", ["", '{"loss": 4.0, "st'])
def test_a_killed_curve_goes_on_at_its_checkpoint(tmp_path, checkpoint, ending):
    whole, kept = Curve(RunLog()), tmp_path / "checkpoints" / "given.jsonl"
    tell(whole, list(range(1, 8)))
    tell(Curve(RunLog(), kept=kept), list(range(1, 6)))
    with kept.open("a") as file:
        file.write(ending)
    resumed = Curve(RunLog(), kept=kept)
    tell(resumed, list(range(checkpoint + 1, 8)))
    assert resumed.rows == whole.rows
    assert read_records(kept) == whole.rows
    resumed.write(tmp_path / "curve.jsonl")
    lines = (tmp_path / "curve.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == whole.rows


def test_a_curve_of_a_finished_training_is_kept_whole(tmp_path):
    kept = tmp_path / "given.jsonl"
    tell(Curve(RunLog(), kept=kept), [1, 2, 3])
    # Killed after its last checkpoint: nothing is left to train, so nothing is told.
    assert len(Curve(RunLog(), kept=kept).rows) == 4
