"""Context features of a request: the same definitions as in training, as of the request's moment.

The moment is the request's ``context.unix_time``, else the clock. Where the newest event of the
bundle is old (or in the future), the moment is just after that event, since no model was
trained on users who were all away for years; replies then say ``stale_data``.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from features.point_in_time import FEATURES, UserState
from serving.bundle.users import Users
from serving.schemas import Degraded

Rows = NDArray[np.int64]
STALE_SECONDS = 30 * 24 * 3600


def moment_of(
    given: int | None,
    clock: int,
    names: Mapping[str, int],
    users: Users,
    degraded: list[Degraded],
) -> int:
    """Settle the unix second as of which a request's features are computed."""
    if given is not None:
        return given
    newest = users.newest_time
    if newest is None or 0 <= clock - newest <= STALE_SECONDS:
        return clock
    if any(FEATURES[name].needs_time for name in names):
        as_of = datetime.fromtimestamp(newest, UTC)
        degraded.append(Degraded("stale_data", f"{as_of:%Y-%m-%d}"))
    return newest + 1


def context_rows(
    names: Mapping[str, int], times: Rows | None, num_events: int, num_session: int, moment: int
) -> dict[str, int]:
    """Compute each feature's categorical row.

    Args:
        times: Unix seconds of the user's known events, ascending, all before ``moment``; None
            where the data has only an order.
        num_session: Events of the session; they count as having just happened.
    """
    if not names:
        return {}
    if times is None:
        state, moment = build_state(np.arange(num_events + num_session)), num_events + num_session
    else:
        state = build_state(times)
        for _ in range(num_session):
            state.update(max(moment - 1, state.latest_time or 0))
    return {name: FEATURES[name].value(state, moment) for name in names}


def build_state(times: Rows) -> UserState:
    """Compute the state after UserState.update with each of these ascending times, at once."""
    if len(times) == 0:
        return UserState()
    first_of_latest = int(np.searchsorted(times, times[-1], side="left"))
    return UserState(
        num_before=first_of_latest,
        num_latest=len(times) - first_of_latest,
        latest_time=int(times[-1]),
        time_before=int(times[first_of_latest - 1]) if first_of_latest else None,
    )
