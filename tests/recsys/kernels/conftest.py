"""Kernel tests marked ``interpreted`` run once more in Triton's interpreter, in one child process.

``@pytest.mark.interpreted(only=True)`` marks what runs nowhere else.
"""

from __future__ import annotations

import pytest

from tests.recsys.kernels.devices import INTERPRETING


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this run, with the interpreter or without, does not test."""

    def wanted(item: pytest.Item) -> bool:
        mark = item.get_closest_marker("interpreted")
        return mark is not None if INTERPRETING else not (mark and mark.kwargs.get("only"))

    here = str(config.rootpath / "tests" / "recsys" / "kernels")
    left_out = [item for item in items if str(item.path).startswith(here) and not wanted(item)]
    if left_out:
        items[:] = [item for item in items if item not in set(left_out)]
        config.hook.pytest_deselected(items=left_out)
