"""Refusals as a table: what each error says, and the call that it refuses."""

import re
from collections.abc import Callable, Mapping


def assert_refused(calls: Mapping[str, Callable[[], object]]) -> None:
    """Hold that each call raises a ValueError in whose message its pattern is found."""
    for pattern, call in calls.items():
        said = refusal(call)
        assert said, f"nothing was refused, expected {pattern!r}"
        assert re.search(pattern, said), f"no {pattern!r} in: {said}"


def refusal(call: Callable[[], object]) -> str:
    """Return the message of the ValueError that a call raises, or nothing."""
    try:
        call()
    except ValueError as error:
        return str(error)
    return ""
