import pytest
import torch

from recsys.models.sequence.encoder import SECONDS_PER_DAY, Calendar

pytestmark = pytest.mark.numerics


def seen(*days: float) -> Calendar:
    """A calendar of ten days a step that was trained on some days."""
    calendar = Calendar(4, 10.0, scale=1.0)
    calendar(at(*days))
    return calendar.eval()


def at(*days: float) -> torch.Tensor:
    return torch.tensor([int(day * SECONDS_PER_DAY) for day in days])


def test_a_time_between_two_vectors_takes_the_nearer_one_more() -> None:
    calendar = seen(0, 1000)
    learned = calendar.vectors.weight
    expected = torch.stack([learned[5], 0.75 * learned[5] + 0.25 * learned[6], learned[6]])
    torch.testing.assert_close(calendar(at(50, 52.5, 60)), expected)


def test_times_outside_training_count_as_its_ends() -> None:
    calendar = seen(100, 200)
    torch.testing.assert_close(calendar(at(5, 900)), calendar(at(100, 200)))
    assert torch.isfinite(calendar(at(-30, 200_000))).all()


def test_steps_of_less_than_a_day_are_refused() -> None:
    with pytest.raises(ValueError, match="days must be in"):
        Calendar(4, 0.5)
