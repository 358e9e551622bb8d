"""``recsys ids``: train and append published semantic IDs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from pipelines.cli.options import Assignments, Run, run_config
from pipelines.cli.output import print_lines, print_table

if TYPE_CHECKING:
    from pipelines.config.run import RunConfig
    from pipelines.engine.workspace import Workspace
    from pipelines.semantic_ids.artefact import Content
    from pipelines.semantic_ids.store import SemanticIdStore
    from recsys.semantic_ids.lifecycle import KeptShares

SHORT = 12
"""Characters of a version that are printed."""

app = typer.Typer(no_args_is_help=True)


@contextmanager
def opened(config: RunConfig, *, fits: bool = False) -> Iterator[tuple[Content, SemanticIdStore]]:
    """Read the catalogue's content and the published versions, under the workspace's lock.

    Args:
        fits: Whether a quantiser is fitted, which may need the sequence model.
    """
    from pipelines.engine.workspace import Workspace
    from pipelines.semantic_ids.artefact import open_id_store
    from pipelines.stages.build_semantic_ids import read_content

    workspace = Workspace(config.workspace)
    if config.semantic_ids.method == "none":
        raise ValueError('semantic_ids.method = "none": this run has no semantic IDs')
    with workspace.lock():
        check_made(workspace, "embed_items", "encoded content")
        trained = None
        if fits and config.makes_ids_of_behaviour():
            check_made(workspace, "train_sequence", "sequence model")
            trained = workspace.stage("train_sequence")
        places = (workspace.stage("build_features"), workspace.stage("embed_items"))
        content = read_content(*places, config, trained)
        yield content, open_id_store(config)


def check_made(workspace: Workspace, stage: str, what: str) -> None:
    """Refuse an artefact that is missing or was made from another catalogue."""
    features, made = workspace.manifest("build_features"), workspace.manifest(stage)
    place, cure = workspace.path.absolute(), f"recsys run --until {stage}"
    if features is None or made is None:
        raise ValueError(f"{place} has no {what}; make it with {cure}")
    if made.inputs["build_features"] != features.output:
        raise ValueError(
            f"the {what} in {place} was made from another catalogue; bring it up to date with "
            f"{cure}"
        )


def store_with_versions(config: RunConfig) -> SemanticIdStore:
    """Open the published versions."""
    from pipelines.semantic_ids.artefact import open_id_store

    store = open_id_store(config)
    if store.current() is None:
        raise ValueError(
            f"no semantic IDs are published in {store.directory.absolute()}; recsys run publishes "
            "them with its bundle, recsys ids train without one"
        )
    return store


def print_kept(kept: KeptShares) -> None:
    """Print the share of items that keep their code, level by level."""
    shares = zip(kept.per_level, kept.per_prefix, strict=True)
    rows = [(str(level), f"{own:.1%}", f"{up:.1%}") for level, (own, up) in enumerate(shares, 1)]
    title = f"{kept.num_items:,} items in both versions"
    print_table(("level", ">same code", ">same prefix"), rows, title=title)


def report_version(version: str, what: str, begin: float) -> None:
    """Print which version became current since ``begin`` of the performance counter."""
    seconds = time.perf_counter() - begin
    print_lines(f"version {version[:SHORT]}: {what}; {seconds:.1f} s; the next recsys run uses it")


@app.command()
def train(
    run: Run,
    assignments: Assignments = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Do not start from the published quantiser.")
    ] = False,
) -> None:
    """Fit the quantiser on the whole catalogue again and publish the new IDs.

    Its codes are matched to the published ones, so that most items keep their ID.

    [bold]Example[/] recsys ids train shop.toml
    """
    from pipelines.semantic_ids.versions import refit_ids

    config, begin = run_config(run, assignments=assignments), time.perf_counter()
    with opened(config, fits=True) as (content, store):
        if not content.is_known().any():
            raise ValueError(
                "no item has content to make an ID from: give the catalogue texts "
                "(content.text_columns), or set a content.encoder other than none"
            )
        made = refit_ids(content, store, config.semantic_ids, seed=config.seed, cold=cold)
        store.publish(made.ids, made.quantizer, made.item_ids, made.origin)
    levels = " x ".join(map(str, made.ids.level_sizes))
    what = f"{made.how}, {made.num_with_id:,} items, levels {levels}"
    report_version(made.ids.version, what, begin)
    if made.kept is not None:
        print_kept(made.kept)
    elif made.ids.parent is not None:
        print_lines(
            f"version {made.ids.parent[:SHORT]} had other levels, so no ID is kept, and models "
            "that read IDs must be trained from scratch",
            note=True,
            style="yellow",
        )


@app.command()
def append(run: Run, assignments: Assignments = None) -> None:
    """Assign IDs to items of the catalogue that have none yet; published IDs stay.

    [bold]Example[/] recsys ids append shop.toml
    """
    from pipelines.semantic_ids.versions import append_new

    config, begin = run_config(run, assignments=assignments), time.perf_counter()
    with opened(config) as (content, _):
        store = store_with_versions(config)
        previous = store.previous()
        assert previous is not None
        encoder = previous.origin.get("encoder")
        if encoder != content.encoder:
            raise ValueError(
                f"the published IDs were made from the vectors of encoder {encoder}, this "
                f"catalogue was encoded by {content.encoder}; fit again with recsys ids train"
            )
        made = append_new(content, store, previous)
        if made.how == "appended":
            store.publish(made.ids, made.quantizer, made.item_ids, made.origin)
    if made.how == "kept":
        print_lines(
            f"nothing to append: all {made.num_with_id:,} items with content have an ID in "
            f"version {made.ids.version[:SHORT]}"
        )
    else:
        report_version(made.ids.version, f"{made.num_new:,} new, no published ID moved", begin)
