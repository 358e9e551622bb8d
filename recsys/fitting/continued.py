"""Which examples an incremental training sees: those with new events, and some of the older ones.

Older examples are drawn anew each time (a replay buffer of everything), so that what was learned
before is not forgotten for what is new (Robins, 1995, "Catastrophic forgetting, rehearsal and
pseudorehearsal").

Axes: U users, W windows, P labels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from recsys.data.dataset import Rows, Sequences
from recsys.data.windows import Windows


@dataclass(frozen=True, kw_only=True)
class NewEvents:
    """What has come since the weights that a training continues."""

    starts: Rows
    """Position of each user's first new event, or the end of the user's events, [U]."""
    replay_share: float
    """Share of the older examples that are trained on as well."""
    seed: int

    def windows(self, windows: Windows, sequences: Sequences) -> Windows:
        """Keep windows that end in new events, and some of the others."""
        # A window's last event is its last label.
        is_new = windows.ends > self.starts[sequences.users_of(windows.ends - 1)]  # [W]
        kept = is_new | self._drawn(len(windows))
        return Windows(windows.starts[kept], windows.ends[kept])

    def labels(self, positions: Rows, sequences: Sequences) -> Rows:
        """Keep labels that are new, and some of the others."""
        is_new = positions >= self.starts[sequences.users_of(positions)]  # [P]
        kept: Rows = positions[is_new | self._drawn(len(positions))]
        return kept

    def _drawn(self, number: int) -> NDArray[np.bool_]:
        drawn: NDArray[np.bool_] = (
            np.random.default_rng([self.seed, number]).random(number) < self.replay_share
        )
        return drawn
