"""Kernels in tests and benchmarks: other configurations, and what launches ask for."""

from collections.abc import Iterator
from contextlib import contextmanager

from recsys.kernels import choice
from recsys.kernels.choice import Config, Question


@contextmanager
def trying(kernel: str, config: Config) -> Iterator[None]:
    """Run a kernel's launches with a configuration instead of the measured one."""
    choice._tried[kernel] = config
    try:
        yield
    finally:
        del choice._tried[kernel]


@contextmanager
def asking() -> Iterator[list[Question]]:
    """Collect what the launches inside ask for."""
    questions: list[Question] = []
    choice._listeners.append(questions)
    try:
        yield questions
    finally:
        choice._listeners.pop()
