"""Log of a running stage, for values worth seeing before it is done."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self


class RunLog:
    """The log of one run of a stage, and the tracker of a training loop; this one keeps nothing.

    ``pipelines.tracking.outbox`` has the one that is kept and sent to a tracking server.
    """

    def log(self, step: int, **values: float) -> None:
        """Log metrics after ``step`` steps; a value may be NaN or infinite."""

    def metrics(self, values: Mapping[str, float]) -> None:
        """Log the run's results; ``a/b`` groups, as in ``test/cold_items/ndcg@10``."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Set tags of the run."""

    def register(
        self,
        model: str,
        *,
        version: str,
        digest: str,
        tags: Mapping[str, str],
        decision: str | None = None,
    ) -> None:
        """Enter a bundle, and the line of the decision on it, into the model registry."""

    def alias(self, model: str, name: str, version: str | None, *, action: str) -> None:
        """Point an alias at a registered bundle, or at none."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the run: finished, failed with its error, or killed."""
