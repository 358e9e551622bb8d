"""``recsys ids train``: fit published semantic IDs again."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import typer

from pipelines.cli.options import Assignments, Run, run_config
from pipelines.cli.output import print_lines

if TYPE_CHECKING:
    from pathlib import Path

    from pipelines.engine.workspace import Workspace

SHORT = 12
"""Characters of a version that are printed."""

app = typer.Typer(no_args_is_help=True)


def find_made(workspace: Workspace, stage: str, what: str) -> Path:
    """Return a stage's artefact; refuse one that is missing or made from another catalogue."""
    features, made = workspace.manifest("build_features"), workspace.manifest(stage)
    place, cure = workspace.path.absolute(), f"recsys run --until {stage}"
    if features is None or made is None:
        raise ValueError(f"{place} has no {what}; make it with {cure}")
    if made.inputs["build_features"] != features.output:
        raise ValueError(
            f"the {what} in {place} was made from another catalogue; bring it up to date with "
            f"{cure}"
        )
    return workspace.stage(stage)


@app.command()
def train(run: Run, assignments: Assignments = None) -> None:
    """Fit the quantiser on the whole catalogue again and publish the new IDs.

    Its codes are matched to the published ones, so that most items keep their ID. A run gives IDs
    to new items by itself.

    [bold]Example[/] recsys ids train shop.toml
    """
    from pipelines.engine.workspace import Workspace
    from pipelines.semantic_ids.store import open_id_store
    from pipelines.semantic_ids.versions import refit_ids
    from pipelines.stages.build_semantic_ids import read_content

    config, begin = run_config(run, assignments=assignments), time.perf_counter()
    if config.semantic_ids.method == "none":
        raise ValueError('semantic_ids.method = "none": this run has no semantic IDs')
    workspace = Workspace(config.workspace)
    with workspace.lock():
        embedded, trained = find_made(workspace, "embed_items", "encoded content"), None
        if config.makes_ids_of_behaviour():
            trained = find_made(workspace, "train_sequence", "sequence model")
        content = read_content(workspace.stage("build_features"), embedded, config, trained)
        if not content.is_known().any():
            raise ValueError(
                "no item has content to make an ID from: give the catalogue texts "
                "(content.text_columns), or set a content.encoder other than none"
            )
        store = open_id_store(config)
        made = refit_ids(content, store, config.semantic_ids, seed=config.seed)
        store.publish(made.ids, made.quantizer, made.item_ids, made.origin)
    print_lines(
        f"version {made.ids.version[:SHORT]}: {made.how}, {made.num_with_id:,} items, levels "
        f"{' x '.join(map(str, made.ids.level_sizes))}; {time.perf_counter() - begin:.1f} s; the "
        "next recsys run uses it"
    )
    if made.kept is not None:
        kept = ", ".join(f"{share:.1%}" for share in made.kept.per_prefix)
        print_lines(
            f"same prefix of {made.kept.num_items:,} items in both versions, by level: {kept}"
        )
    elif made.ids.parent is not None:
        print_lines(
            f"version {made.ids.parent[:SHORT]} had other levels, so no ID is kept, and models "
            "that read IDs must be trained from scratch",
            note=True,
        )
