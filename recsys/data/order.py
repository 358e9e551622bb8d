"""The order in which training sees its examples: seeded, reshuffled each epoch, resumable.

The order is a function of the step alone, so a run that resumes at step s needs no cursor file
and sees exactly the batches that the uninterrupted run would have seen.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass
class BatchOrder:
    """Cuts a fresh permutation of the examples into batches, epoch after epoch.

    The examples left over at the end of an epoch (fewer than a batch) are dropped; the next
    epoch's permutation brings them back. A data set smaller than a batch is one whole batch.

    Raises:
        ValueError: If there is no example or the batch size is not positive.
    """

    num_samples: int
    batch_size: int
    seed: int
    _epoch: int = field(default=-1, init=False, repr=False)
    _permutation: NDArray[np.int64] = field(
        default_factory=lambda: np.empty(0, np.int64), init=False, repr=False
    )

    def __post_init__(self) -> None:
        if self.num_samples < 1:
            raise ValueError(
                f"num_samples must be >= 1, got {self.num_samples}: there is nothing to train on; "
                "look at the features report for what filtering removed"
            )
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be >= 1, got {self.batch_size}")

    @property
    def steps_per_epoch(self) -> int:
        return max(1, self.num_samples // self.batch_size)

    def indices(self, step: int) -> NDArray[np.int64]:
        """Return the examples of one step, [min(batch_size, num_samples)]."""
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            rng = np.random.default_rng([self.seed, epoch])
            self._permutation = rng.permutation(self.num_samples)
            self._epoch = epoch
        return self._permutation[place * self.batch_size : (place + 1) * self.batch_size]
