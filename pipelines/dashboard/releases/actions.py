"""Folders of bundles; promote and roll back from the page, by the functions of the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipelines.dashboard.context import Act, Context
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.workspaces.files import place_key
from pipelines.dashboard.workspaces.run import Run
from pipelines.engine.errors import RefusedError, WorkspaceBusyError
from pipelines.operations.state import move_alias
from pipelines.pages.document import Action, Block, Origin, Section, Words
from pipelines.publishing.promotion import champions, promote, rollback
from pipelines.publishing.released import shop_workspace
from pipelines.tracking.decisions import AliasChange

PATIENCE_SECONDS = 2.0
"""Time that a click waits for another command that publishes."""
MAX_REASON = 500
NO_KEY = (
    "nothing can be changed here: this dashboard was started without a key; use "
    "recsys release promote and recsys release rollback, or start it with a key"
)
FIELDS = (("reason", "Reason, written into the decision"), ("confirm", "Version, to confirm"))


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A folder of bundles, with the workspace whose runs publish there."""

    key: str
    bundles: Path
    workspace: Path | None
    origins: Sequence[Origin]

    @property
    def name(self) -> str:
        return str(self.workspace or self.bundles)


def choose_folder(context: Context, query: Query) -> tuple[Folder | None, list[Folder]]:
    """Choose by ``bundles`` or ``run``, else the one with the newest bundle; list all of them."""
    runs = context.stores.runs()
    of_path = {run.path: run for run in runs if run.kind == "workspace"}
    newest: dict[Path, Run] = {}
    for run in runs:
        if run.kind == "bundle":
            newest.setdefault(run.bundles_folder, run)
    known = []
    for bundles, bundle in newest.items():
        maker = of_path.get(bundles.parent) or context.stores.maker(bundle)
        above = bundles.parent if (bundles.parent / "config.toml").is_file() else None
        workspace = above if maker is None else shop_workspace(maker.path)
        own, key = [maker.origin] if maker else [], place_key(str(bundles))
        known.append(Folder(key=key, bundles=bundles, workspace=workspace, origins=own))
    if key := query.text("bundles"):
        if found := next((one for one in known if one.key == key), None):
            return found, known
        raise NotFoundError(
            f"no folder of bundles {key!r}: it is gone, or holds no bundle any more"
        )
    if key := query.text("run"):
        run = context.stores.run(key)
        for one in known:
            if one.bundles == run.bundles_folder or one.workspace == shop_workspace(run.path):
                return one, known
        raise NotFoundError(f"{run.name} has released no bundle; recsys run {run.path} makes one")
    return (known[0] if known else None), known


def goes_back_to(folder: Folder) -> str | None:
    """Return the version that a rollback would serve; None if there is none before."""
    try:
        stack = champions(folder.bundles)
    except ValueError:
        # The page names the fault.
        return None
    return stack[-2] if len(stack) > 1 else None


def actions_section(
    folder: Folder, version: str | None, served: str | None, *, with_key: bool
) -> Section:
    """Offer to promote the chosen version, and to roll back."""
    offered = []
    if with_key and version is not None and version != served:
        note = (
            f"{version} becomes champion in place of {served or 'nothing'}: servers load it "
            "within a second. It is verified first, and the decision is written down."
        )
        offered.append(("promote", version, f"Serve {version}", note))
    if with_key and (back := goes_back_to(folder)) is not None:
        note = (
            f"{back}, the champion before, is served in place of {served}. Doing it once more "
            "goes back one further."
        )
        offered.append(("rollback", back, f"Roll back to {back}", note))
    words = "The chosen version is served, and there is none before it. Choose another one."
    if not with_key:
        words = f"{NO_KEY[0].upper()}{NO_KEY[1:]}."
    blocks: list[Block] = [
        Action(
            key=name,
            title=title,
            note=f"{note} To confirm, write {one}.",
            name=name,
            values={"bundles": folder.key, "served": served or "", "version": one},
            fields=FIELDS,
        )
        for name, one, title, note in offered
    ]
    blocks = blocks or [Words(lines=[words], tone="note")]
    return Section(key="actions", title="Promote or roll back", blocks=blocks)


def move(context: Context, values: Mapping[str, str], *, action: str) -> str:
    """Check the values, move the alias, and return the change in words."""
    if context.key is None:
        raise QueryError(NO_KEY)
    version, reason = values.get("version", ""), " ".join(values.get("reason", "").split())
    if not version or values.get("confirm", "").strip() != version:
        raise QueryError(f"nothing was changed: to confirm, write {version or 'the version'}")
    if not reason:
        raise QueryError("nothing was changed: give a reason, it is written into the decision")
    if len(reason) > MAX_REASON:
        raise QueryError(f"the reason has {len(reason)} characters; {MAX_REASON} are allowed")
    folder, _ = choose_folder(context, Query.of(bundles=values.get("bundles", "-")))
    assert folder is not None
    if action == "rollback" and goes_back_to(folder) != version:
        raise QueryError(
            f"nothing was changed: a rollback would not serve {version} any more; reload the page"
        )
    change_alias: Callable[..., AliasChange] = rollback
    if action == "promote":
        change_alias = partial(promote, version=version)
    by_hand = partial(
        change_alias,
        reason=f"{reason} (from the dashboard)",
        expected=values.get("served", ""),
        patience_seconds=PATIENCE_SECONDS,
    )
    try:
        moved = move_alias(action, folder.bundles, by_hand, folder.workspace)
    except (WorkspaceBusyError, RefusedError, ValueError, OSError) as error:
        raise QueryError(f"nothing was changed: {error}") from error
    change = moved.change
    before = f", before it was {change.previous}" if change.previous else ""
    registry = ""
    if moved.config.enabled:
        registry = " The model registry gets it with the next run, or recsys registry send."
    return (
        f"{change.alias} is {change.version}{before}. The decision was written with your reason."
        f"{registry}"
    )


ACTIONS: Mapping[str, Act] = {name: partial(move, action=name) for name in ("promote", "rollback")}
