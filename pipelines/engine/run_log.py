"""Log of a running stage, for values worth seeing before it is done."""

from __future__ import annotations

from collections.abc import Mapping


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
