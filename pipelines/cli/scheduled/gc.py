"""The command ``recsys gc``: remove what nobody needs."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import DEMO, AsJson
from pipelines.engine.console import out
from pipelines.engine.formats import size

if TYPE_CHECKING:
    from pipelines.operations.collect import Collected

MAX_NAMED = 8
Workspace = Annotated[Path, typer.Option("--workspace", "-w", help="Folder of the runs.")]


def gc(
    workspace: Workspace = DEMO,
    keep_days: Annotated[
        float, typer.Option(min=0, help="Keep what was released or served in so many days.")
    ] = 14,
    keep: Annotated[int, typer.Option(min=1, help="Keep so many of the newest bundles.")] = 3,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove bundles, adapters, semantic IDs, training states and sent records nobody needs.

    Champion, challenger, the champion before and what deltas stand on are kept, and what a link
    points at or a running server or command has loaded, whatever its age.

    [bold]Examples[/]

      recsys gc --workspace runs/shop --dry-run

      recsys gc --workspace runs/shop --keep-days 30
    """
    from contextlib import nullcontext

    from pipelines.engine.history import Recording, recorded
    from pipelines.operations.collect import collect
    from pipelines.operations.places import bundles_of

    if not workspace.is_dir():
        raise ValueError(f"no workspace {workspace}; name one with --workspace")
    history = nullcontext(Recording("gc")) if dry_run else recorded(workspace, "gc")
    with history as recording:
        found = collect(
            workspace, bundles_of(workspace), keep_days=keep_days, keep=keep, dry=dry_run
        )
        recording.details |= {
            "removed": [f"{one.kind} {one.name}" for one in found.removed],
            "bytes": found.num_bytes,
            "refused": found.refused,
        }
        recording.reasons += [f"{name} was left: {why}" for name, why in found.refused.items()]
        if not found.removed:
            recording.outcome = "nothing to do"
        print_collected(found, dry=dry_run, as_json=as_json)


def print_collected(found: Collected, *, dry: bool, as_json: bool) -> None:
    """Print what was removed, what was kept and why."""
    if as_json:
        out.print_json(json.dumps({**asdict(found), "num_bytes": found.num_bytes}))
        return
    verb = "would be removed" if dry else "removed"
    out.print(f"{len(found.removed)} {verb}, {size(found.num_bytes)}")
    for name, why in found.refused.items():
        out.print(f"bundle {name} was left: {why}", markup=False, soft_wrap=True)
    for note in found.notes:
        out.print(f"note: {note}", markup=False, soft_wrap=True)
    for line in [*lines_of_removed(found, "goes" if dry else "gone"), *lines_of_kept(found)]:
        out.print(line, markup=False, soft_wrap=True)


def lines_of_removed(found: Collected, verb: str) -> list[str]:
    """Name what goes; many of one kind are counted."""
    alike: dict[tuple[str, str], list[str]] = {}
    for one in found.removed:
        alike.setdefault((one.kind, one.why), []).append(one.name)
    return [
        f"{verb}  {kind} {', '.join(names)}: {why}"
        if len(names) <= MAX_NAMED
        else f"{verb}  {len(names)} of {kind}: {why}"
        for (kind, why), names in alike.items()
    ]


def lines_of_kept(found: Collected) -> list[str]:
    """Say why each bundle stays."""
    return [f"kept  bundle {version}: {why}" for version, why in found.kept.items()]
