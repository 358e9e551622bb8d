import math
from itertools import count

import pytest
import torch
from torch import nn

from recsys.training import progress
from recsys.training.captured import AheadLoss
from recsys.training.checkpoint import CheckpointError, load_latest
from recsys.training.loop import TrainingDiverged, train
from recsys.training.optim import adamw
from recsys.training.passes import AdamWConfig, LoopConfig, ScheduleConfig

pytestmark = pytest.mark.numerics


class Lists:
    """A tracker and a progress that keep what they are told."""

    def __init__(self):
        self.logged, self.shown = [], []

    def log(self, step, **values):
        self.logged.append((step, values))

    def show(self, step, num_steps, **values):
        self.shown.append((step, num_steps, values))

    def values(self, name):
        return {step: values[name] for step, values in self.logged if name in values}


class Line(nn.Module):
    """y = 3 x - 1 from noiseless points: training must find exactly that."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(1, 1)

    def loss_at(self, step):
        x = torch.randn(64, 1, generator=torch.Generator().manual_seed(step))
        return (self.line(x) - (3 * x - 1)).square().mean()


def config_of(num_steps, **settings):
    schedule = ScheduleConfig(learning_rate=0.05, warmup_steps=10)
    defaults = {"schedule": schedule, "metric": "fit", "patience": None, "log_every": 10}
    return LoopConfig(num_steps=num_steps, **{**defaults, **settings})


def run(model, config, *, loss_at=None, **settings):
    optimizer = adamw(model, AdamWConfig(weight_decay=0.0))
    quiet = {"progress": Lists(), **settings}
    return train(model, loss_at or model.loss_at, optimizer, config, **quiet)


def weights_of(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def assert_same_weights(model, expected):
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name


def test_training_finds_the_known_line():
    model = Line()
    result = run(model, config_of(400))
    assert [one.item() for one in model.parameters()] == pytest.approx([3, -1], abs=1e-3)
    assert (result.num_steps, result.best_step, result.bad_steps) == (400, 400, 0)
    assert result.best_metric is None
    assert not model.training


def test_batches_are_made_one_step_ahead_and_none_beyond_the_last():
    """A validation may be the end, so the batch after it is made after it."""
    model, plain, done = Line(), Line(), []

    def note(what, step):
        done.append(f"{what} {step}")
        return step

    def evaluate(_):
        done.append("validated")
        return {"fit": float(-len(done))}

    for judge, steps in ((None, 23), (evaluate, 20)):
        done.clear()
        trained = Line() if judge else model
        ahead = AheadLoss(
            lambda step: note("made", step),
            lambda step, own=trained: own.loss_at(note("used", step)),
            torch.device("cpu"),
        )
        settings = config_of(23, eval_every=10, patience=1)
        assert run(trained, settings, loss_at=ahead, evaluate=judge).num_steps == steps
        assert [one for one in done if "made" in one] == [f"made {step}" for step in range(steps)]
        assert done.index("used 5") + 1 == done.index("made 6")
    assert done.index("validated") + 1 == done.index("made 10")
    run(plain, config_of(23))
    assert_same_weights(model, plain.state_dict())


def test_early_stopping_keeps_the_best_weights_and_a_finished_run_is_not_trained_again(tmp_path):
    # Validation by script: the third of these is the best, two worse ones follow.
    scores = iter([0.1, 0.2, 0.5, math.nan, 0.4])
    seen = []

    def evaluate(model):
        assert not model.training
        assert not torch.is_grad_enabled()
        seen.append(weights_of(model))
        return {"fit": next(scores), "other": 1.0}

    config = config_of(1000, eval_every=10, patience=2)
    results = []
    for model in (Line(), Line()):
        results.append(run(model, config, evaluate=evaluate, checkpoint_dir=tmp_path))
        assert_same_weights(model, seen[2])
    first, again = results
    assert first.stopped_early
    assert (first.num_steps, first.best_step, first.best_metric) == (50, 30, 0.5)
    assert again == first


def test_bad_steps_are_skipped_and_counted_and_move_nothing():
    def loss_at(step):
        if step == 7:
            # The square root has an infinite slope at zero.
            seen.append(weights_of(model))
            return model.loss_at(step) + (model.line.weight.sum() * 0).sqrt()
        if step == 8:
            assert_same_weights(model, seen[0])
        return model.loss_at(step) * {5: math.nan, 9: math.inf}.get(step, 1.0)

    model, lists, seen = Line(), Lists(), []
    result = run(model, config_of(400), loss_at=loss_at, tracker=lists)
    assert result.bad_steps == 3
    assert lists.values("bad_steps") == {5: 1, 7: 2, 9: 3}
    assert model.line.weight.item() == pytest.approx(3, abs=1e-3)


def test_bad_streak_rolls_back_and_stops_with_a_code(tmp_path):
    model = Line()
    config = config_of(100, checkpoint_every=10, max_bad_steps=4)
    with pytest.raises(TrainingDiverged, match="4 steps in a row up to step 26") as caught:
        run(
            model,
            config,
            loss_at=lambda step: model.loss_at(step) * (math.nan if step >= 23 else 1.0),
            checkpoint_dir=tmp_path,
        )
    assert caught.value.exit_code == 70
    assert "the model is back at step 20" in str(caught.value)
    assert_same_weights(model, load_latest(tmp_path).tensors["model"])


class Stopped(Exception):
    """What stands in for a kill inside one process."""


def test_checkpoint_of_another_run_is_refused(tmp_path):
    run(Line(), config_of(20), checkpoint_dir=tmp_path)
    with pytest.raises(CheckpointError, match=r"num_steps = 20, this run has 30; delete that"):
        run(Line(), config_of(30), checkpoint_dir=tmp_path)
    # How often it logs changes no weight.
    run(Line(), config_of(20, log_every=3), checkpoint_dir=tmp_path)
    other = nn.Linear(2, 1)
    with pytest.raises(CheckpointError, match="belongs to another model"):
        run(other, config_of(20), loss_at=lambda _: other.weight.sum(), checkpoint_dir=tmp_path)


def test_folder_that_cannot_be_written_stops_the_run_at_its_start(tmp_path):
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / "checkpoints"
    asked = []
    with pytest.raises(OSError, match=r"cannot be written in .*checkpoints: .*choose another"):
        run(Line(), config_of(3), loss_at=asked.append, checkpoint_dir=folder)
    assert not asked


@pytest.fixture
def clock(monkeypatch):
    """A clock that only steps and validations move, as a list of its seconds."""
    seconds = [1000.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: seconds[0])
    return seconds


def run_timed(clock, num_steps, max_seconds=None, *, step_seconds=None, **settings):
    """Train with validations of 2 s every 10 steps; return model, result and learning rates."""
    model, lists, validated = Line(), Lists(), count(1)

    def loss_at(step):
        clock[0] += 1.0 if step_seconds is None else step_seconds(step)
        return model.loss_at(step)

    def evaluate(_):
        clock[0] += 2.0
        return {"fit": float(next(validated))}

    schedule = ScheduleConfig(learning_rate=0.05, decay="linear")
    limits = {"max_seconds": max_seconds, "eval_every": 10, "checkpoint_every": 10}
    config = config_of(num_steps, schedule=schedule, log_every=1, **limits)
    how = {"loss_at": loss_at, "evaluate": evaluate, "tracker": lists, **settings}
    result = run(model, config, **how)
    return model, result, list(lists.values("learning_rate").values())


def test_a_run_within_its_limit_is_one_without_to_the_last_bit(clock):
    def uneven(step):
        return 4.0 if step == 0 else 1.5 if step % 2 else 0.5

    free, without, rates = run_timed(clock, 100, step_seconds=uneven)
    limited, within, same_rates = run_timed(clock, 100, 130.0, step_seconds=uneven)
    assert within == without
    assert same_rates == rates
    assert not within.stopped_by_time
    assert within.schedule_steps == within.num_steps == 100
    assert_same_weights(limited, free.state_dict())


def test_a_run_out_of_time_stops_within_it_validated_and_decayed(clock):
    began = clock[0]
    _, result, rates = run_timed(clock, 1000, 60.0)
    assert 55 <= clock[0] - began <= 60
    assert result.stopped_by_time
    assert not result.stopped_early
    assert 40 <= result.num_steps == result.schedule_steps <= 50
    # The last validation is of the last step, and the rate falls all the way in even strides.
    assert result.best_step == result.num_steps
    assert rates[-1] < 0.05 * 0.05
    falls = torch.tensor(rates).diff()[4:]
    assert (falls < 0).all()
    assert falls.abs().max() < 3 * falls.abs().mean()


def test_a_killed_run_resumes_with_the_seconds_it_had_spent(clock, tmp_path):
    def fatal(step):
        if step == 30:
            raise Stopped
        return 1.0

    with pytest.raises(Stopped):
        run_timed(clock, 1000, 60.0, step_seconds=fatal, checkpoint_dir=tmp_path)
    clock[0] += 500
    began = clock[0]
    _, result, rates = run_timed(clock, 1000, 60.0, checkpoint_dir=tmp_path)
    # 30 steps and 2 or 3 validations were done.
    assert 20 <= clock[0] - began <= 28
    assert 40 <= result.num_steps <= 55
    assert rates[-1] < 0.05 * 0.05
    again = clock[0]
    assert run_timed(clock, 1000, 60.0, checkpoint_dir=tmp_path)[1] == result
    assert clock[0] == again
