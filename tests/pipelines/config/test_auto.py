import pytest

from pipelines.config.operation import AutoConfig, budget_seconds


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10m", 600.0), ("90s", 90.0), ("1h30m", 5400.0), ("600", 600.0), ("1.5H", 5400.0)],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert budget_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "ten minutes", "m10", "-5m", "10 m", "5d"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(ValueError, match="write it like 10m, 90s"):
        budget_seconds(text)


def test_a_budget_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="must be > 0, got '0'"):
        AutoConfig(budget="0")
