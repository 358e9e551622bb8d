"""Refusals as a table: what each error says, and the call that it refuses."""

import re
from collections.abc import Callable, Mapping


def assert_refused(calls: Mapping[str, Callable[[], object]]) -> None:
    """Hold that each call raises a ValueError in whose message its pattern is found."""
    for pattern, call in calls.items():
        try:
            call()
        except ValueError as error:
            assert re.search(pattern, str(error)), f"no {pattern!r} in: {error}"
        else:
            raise AssertionError(f"nothing was refused, expected {pattern!r}")
