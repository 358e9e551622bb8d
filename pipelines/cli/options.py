"""Options that several commands share."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

DEMO = Path("runs/movielens-100k")

ConfigFile = Annotated[
    Path | None, typer.Option("--config", "-c", help='TOML file: preset = "..." and overrides.')
]
Preset = Annotated[str | None, typer.Option(help="Preset by name, instead of or above the file's.")]
WorkspacePath = Annotated[
    Path | None, typer.Option("--workspace", "-w", help="Folder of the run's artefacts.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override one key, for example seed=1."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]
Open = Annotated[bool, typer.Option("--open", help="Open it in the browser.")]

RUN_OPTIONS = {
    "config": ConfigFile,
    "preset": Preset,
    "workspace": WorkspacePath,
    "assignments": Assignments,
}


def on_a_run(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command ``--config``, ``--preset``, ``--workspace`` and ``--set`` behind its own.

    The command is called with the configuration they resolve to as ``config``; a workspace alone
    is read with the configuration of its last run.
    """
    # The configuration's class is imported for type checkers alone.
    signature = inspect.signature(command, locals={"RunConfig": object}, eval_str=True)
    own = [one for one in signature.parameters.values() if one.name != "config"]
    shared = [
        inspect.Parameter(
            name, inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=option
        )
        for name, option in RUN_OPTIONS.items()
    ]

    @wraps(command)
    def resolved(**given: Any) -> None:
        from pipelines.presets.resolve import resolve

        config, preset, workspace, assignments = (given.pop(name) for name in RUN_OPTIONS)
        if config is None and preset is None:
            if workspace is None:
                raise ValueError("name a run: --config shop.toml, or --workspace runs/shop")
            config = workspace / "config.toml"
        settings = resolve(
            config, preset=preset, assignments=assignments or [], workspace=workspace
        )
        command(config=settings, **given)

    resolved.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    resolved.__annotations__ = {one.name: one.annotation for one in [*own, *shared]}
    return resolved
