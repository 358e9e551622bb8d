"""A training with a limit in seconds, by a clock that only steps and validations move."""

import pytest
import torch
from torch import nn

from recsys.training import progress
from recsys.training.loop import train
from recsys.training.optim import AdamWConfig, LoopConfig, ScheduleConfig, adamw
from recsys.training.progress import SilentProgress

pytestmark = pytest.mark.numerics


class Clock:
    """Tells the seconds that were spent on it."""

    def __init__(self):
        self.seconds = 1000.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(progress.time, "monotonic", clock)
    return clock


class Line(nn.Module):
    """y = 3 x - 1; a step takes ``step_seconds``, a validation ``validation_seconds``."""

    def __init__(self, clock, step_seconds=lambda _: 1.0, validation_seconds=0.0):
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(1, 1)
        self.clock, self.step_seconds = clock, step_seconds
        self.validation_seconds = validation_seconds
        self.validated = []

    def loss_at(self, step):
        self.clock.seconds += self.step_seconds(step)
        x = torch.randn(64, 1, generator=torch.Generator().manual_seed(step))
        return (self.line(x) - (3 * x - 1)).square().mean()

    def evaluate(self, _):
        self.clock.seconds += self.validation_seconds
        self.validated.append({name: value.clone() for name, value in self.state_dict().items()})
        return {"fit": float(len(self.validated))}


class Rates:
    """Keeps the learning rate of each step."""

    def __init__(self):
        self.rates = []

    def log(self, step, **values):
        self.rates += [values["learning_rate"]] if "learning_rate" in values else []


def config_of(num_steps, max_seconds=None, **settings):
    schedule = ScheduleConfig(learning_rate=0.05, decay="linear")
    defaults = {"schedule": schedule, "metric": "fit", "patience": None, "log_every": 1}
    return LoopConfig(num_steps=num_steps, max_seconds=max_seconds, **{**defaults, **settings})


def run(model, config, *, validated=True, **settings):
    rates = Rates()
    optimizer = adamw(model, AdamWConfig(weight_decay=0.0))
    result = train(
        model,
        model.loss_at,
        optimizer,
        config,
        evaluate=model.evaluate if validated else None,
        tracker=rates,
        progress=SilentProgress(),
        **settings,
    )
    return result, rates.rates


def assert_same_weights(model, expected):
    for name, value in model.state_dict().items():
        assert torch.equal(value, expected[name]), name


def uneven(step):
    return 4.0 if step == 0 else 1.5 if step % 2 else 0.5


def test_a_run_within_its_limit_is_one_without_to_the_last_bit(clock):
    free, limited = (Line(clock, uneven, validation_seconds=2.0) for _ in range(2))
    without, rates = run(free, config_of(100, eval_every=10))
    within, same_rates = run(limited, config_of(100, max_seconds=130.0, eval_every=10))
    assert within == without
    assert same_rates == rates
    assert not within.stopped_by_time
    assert within.schedule_steps == within.num_steps == 100
    assert_same_weights(limited, free.state_dict())


def test_a_run_out_of_time_stops_within_it_validated_and_decayed(clock):
    model = Line(clock, validation_seconds=2.0)
    began = clock.seconds
    result, rates = run(model, config_of(1000, max_seconds=60.0, eval_every=10))
    assert clock.seconds - began <= 60
    assert clock.seconds - began >= 55
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
            raise KeyboardInterrupt
        return 1.0

    config = config_of(1000, max_seconds=60.0, eval_every=10, checkpoint_every=10)
    with pytest.raises(KeyboardInterrupt):
        run(Line(clock, fatal), config, checkpoint_dir=tmp_path)
    clock.seconds += 500
    began = clock.seconds
    result, rates = run(Line(clock), config, checkpoint_dir=tmp_path)
    assert 25 <= clock.seconds - began <= 30
    assert 55 <= result.num_steps <= 60
    assert rates[-1] < 0.05 * 0.05
    again = clock.seconds
    finished, _ = run(Line(clock), config, checkpoint_dir=tmp_path)
    assert finished == result
    assert clock.seconds == again
