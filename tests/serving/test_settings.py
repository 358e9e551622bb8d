from pathlib import Path

import pytest

from serving.settings import Settings


def test_given_values_win_over_the_environment_and_that_over_defaults():
    environment = {"RECSYS_PORT": "9000", "RECSYS_HOST": "0.0.0.0", "OTHER": "x"}
    settings = Settings.from_environment(environment, port=9001, host=None, bundles="b")
    assert settings == Settings(port=9001, host="0.0.0.0", bundles=Path("b"))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("RECSYS_PORT", "http", "RECSYS_PORT.*valid integer.*'http'"),
        ("RECSYS_PORT", "70000", "port must be in"),
        ("RECSYS_POLL_SECONDS", "0", "poll_seconds must be > 0"),
        ("RECSYS_MAX_BODY_BYTES", "-1", "max_body_bytes must be > 0"),
    ],
)
def test_wrong_variable_is_named(name, value, message):
    with pytest.raises(ValueError, match=message):
        Settings.from_environment({name: value})


def test_profile_is_fast_or_full():
    assert Settings.from_environment({}).profile == "fast"
    assert Settings.from_environment({"RECSYS_PROFILE": "full"}).profile == "full"
    assert Settings.from_environment({"RECSYS_PROFILE": "full"}, profile="fast").profile == "fast"
    with pytest.raises(ValueError, match=r"RECSYS_PROFILE.*'fast' or 'full', got 'slow'"):
        Settings.from_environment({"RECSYS_PROFILE": "slow"})
    with pytest.raises(ValueError, match="beam_timeout_ms must be > 0"):
        Settings(beam_timeout_ms=0)
