"""Promote and roll back from the page, by the functions of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from pipelines.dashboard.context import Context
from pipelines.dashboard.query import Query, QueryError
from pipelines.dashboard.releases.folders import Folder, folder_of
from pipelines.engine.errors import RefusedError, WorkspaceBusyError
from pipelines.operations.aliases import Moved, move_alias
from pipelines.pages.document import Action
from pipelines.publishing.promotion import (
    AliasChange,
    ByHand,
    champions_served,
    make_challenger,
    promote,
    rollback,
)

PATIENCE_SECONDS = 2.0
"""Who clicks learns at once that somebody else publishes."""
MAX_REASON = 500
NO_KEY = (
    "nothing can be changed here: this dashboard was started without a key; use recsys promote and "
    "recsys rollback, or start it with a key"
)
FIELDS = (("reason", "Reason, written into the decision"), ("confirm", "Version, to confirm"))
Move = Callable[..., AliasChange]


def goes_back_to(folder: Folder) -> str | None:
    """Name the version that a rollback would serve; None where there is none before."""
    try:
        stack = champions_served(folder.bundles)
    except ValueError:
        # The page says so above all.
        return None
    return stack[-2] if len(stack) > 1 else None


def actions_for(folder: Folder, version: str | None, served: str | None) -> list[Action]:
    """Offer what can be done.

    Args:
        version: The one that the reader chose.
    """
    values = {"bundles": folder.key, "served": served or ""}
    found = []
    if version is not None and version != served:
        own = {**values, "version": version}
        found += [
            Action(
                key="promote",
                title=f"Serve {version}",
                note=f"{version} becomes champion in place of {served or 'nothing'}: servers load "
                "it within a second. It is verified first, and the decision is written down. "
                f"To confirm, write {version}.",
                name="promote",
                values=own,
                fields=FIELDS,
            ),
            Action(
                key="challenger",
                title=f"Keep {version} as challenger",
                note=f"{served or 'Nothing'} goes on being served; the next recsys promote takes "
                f"{version}. To confirm, write {version}.",
                name="challenger",
                values=own,
                fields=FIELDS,
            ),
        ]
    back = goes_back_to(folder)
    if back is not None:
        found.append(
            Action(
                key="rollback",
                title=f"Roll back to {back}",
                note=f"{back}, the champion before, is served in place of {served}. Doing it once "
                f"more goes back one further. To confirm, write {back}.",
                name="rollback",
                values={**values, "version": back},
                fields=FIELDS,
            )
        )
    return found


def promote_version(context: Context, values: Mapping[str, str]) -> str:
    """Serve a version."""
    return _moved(context, values, "promote", partial(promote, version=_version(values)))


def keep_as_challenger(context: Context, values: Mapping[str, str]) -> str:
    """Make a version the challenger."""
    return _moved(context, values, "promote", partial(make_challenger, version=_version(values)))


def roll_back(context: Context, values: Mapping[str, str]) -> str:
    """Serve the champion before."""
    return _moved(context, values, "rollback", rollback)


def _version(values: Mapping[str, str]) -> str:
    version = values.get("version", "")
    if not version:
        raise QueryError("no version was named; choose one on the page")
    return version


def _moved(context: Context, values: Mapping[str, str], command: str, move: Move) -> str:
    """Check what was sent, have it done, and say so.

    Raises:
        QueryError: Nothing was changed; says why.
    """
    if context.key is None:
        raise QueryError(NO_KEY)
    version, reason = _version(values), " ".join(values.get("reason", "").split())
    if values.get("confirm", "").strip() != version:
        raise QueryError(f"nothing was changed: to confirm, write {version}")
    if not reason:
        raise QueryError("nothing was changed: give a reason, it is written into the decision")
    if len(reason) > MAX_REASON:
        raise QueryError(f"the reason has {len(reason)} characters; {MAX_REASON} are allowed")
    folder = folder_of(context, Query.of(bundles=values.get("bundles", "-")))
    assert folder is not None
    if command == "rollback" and goes_back_to(folder) != version:
        raise QueryError(
            f"nothing was changed: a rollback would not serve {version} any more; look at the page "
            "anew"
        )
    by_hand = ByHand(
        reason=f"{reason} (from the dashboard)",
        instead_of=values.get("served", ""),
        patience_seconds=PATIENCE_SECONDS,
    )
    try:
        moved = move_alias(
            command, folder.bundles, partial(move, by_hand=by_hand), folder.workspace
        )
    except (WorkspaceBusyError, RefusedError, ValueError, OSError) as error:
        raise QueryError(f"nothing was changed: {error}") from error
    return _done(moved)


def _done(moved: Moved) -> str:
    change = moved.change
    before = f", before it was {change.previous}" if change.previous else ""
    registry = ""
    if moved.config.enabled:
        registry = " The model registry gets it with the next run, or recsys tracking send."
    return (
        f"{change.alias} is {change.version}{before}. The decision was written with your reason."
        f"{registry}"
    )
