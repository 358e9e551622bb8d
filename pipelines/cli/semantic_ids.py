"""``recsys ids``: train, append, align, compare, roll back and report published semantic IDs."""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.table import Table

from pipelines.cli.options import Open, on_a_run
from pipelines.engine.console import PlainErrors, log, out

if TYPE_CHECKING:
    from pipelines.config.run import RunConfig
    from pipelines.engine.workspace import Workspace
    from pipelines.semantic_ids.store import SemanticIdStore
    from pipelines.semantic_ids.versions import Content
    from recsys.semantic_ids.lifecycle import KeptShares

SHORT = 12
"""Characters of a version that a person is shown."""
USED_NEXT = "the next recsys run uses it"

app = typer.Typer(cls=PlainErrors, no_args_is_help=True, rich_markup_mode="rich")


@contextmanager
def opened(config: RunConfig, *, fits: bool = False) -> Iterator[tuple[Content, SemanticIdStore]]:
    """Read the catalogue's content and the published versions, under the workspace's lock.

    Args:
        fits: Whether a quantiser is fitted, which may need the sequence model.

    Raises:
        ValueError: They are not there, or made from different catalogues.
        WorkspaceBusyError: A run works there.
    """
    from pipelines.engine.workspace import Workspace
    from pipelines.stages.build_semantic_ids import read_content, store_of

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
        yield content, store_of(config)


def check_made(workspace: Workspace, stage: str, what: str) -> None:
    """Refuse an artefact that is missing or was made from another catalogue.

    Raises:
        ValueError: Names it and the stage that makes it.
    """
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
    """Open the published versions.

    Raises:
        ValueError: There is none.
    """
    from pipelines.stages.build_semantic_ids import store_of

    store = store_of(config)
    if store.current() is None:
        raise ValueError(
            f"no semantic IDs are published in {store.directory.absolute()}; recsys run publishes "
            "them with its bundle, recsys ids train without one"
        )
    return store


def kept_table(kept: KeptShares, before: KeptShares | None = None) -> Table:
    """Tabulate the share of items that keep their code, level by level."""
    title = f"{kept.num_items:,} items in both versions"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("level")
    for name in ("same code", "same prefix", *(["before aligning"] if before else [])):
        table.add_column(name, justify="right")
    for level, (own, prefix) in enumerate(zip(kept.per_level, kept.per_prefix, strict=True)):
        more = [f"{before.per_prefix[level]:.1%}"] if before else []
        table.add_row(str(level + 1), f"{own:.1%}", f"{prefix:.1%}", *more)
    return table


def report_version(version: str, what: str, begin: float) -> None:
    """Print which version became current since ``begin`` of the performance counter."""
    seconds = time.perf_counter() - begin
    line = f"version {version[:SHORT]}: {what}; {seconds:.1f} s; {USED_NEXT}"
    out.print(line, markup=False, soft_wrap=True)


@app.command()
@on_a_run
def train(
    config: RunConfig,
    cold: Annotated[
        bool, typer.Option("--cold", help="Do not start from the published quantiser.")
    ] = False,
) -> None:
    """Fit the quantiser on the whole catalogue again and publish the new IDs.

    Its codes are matched to the published ones, so that most items keep their ID.

    [bold]Example[/] recsys ids train --config shop.toml
    """
    from pipelines.config.toml import plain
    from pipelines.semantic_ids.versions import refit_ids

    begin = time.perf_counter()
    with opened(config, fits=True) as (content, store):
        if not content.is_known().any():
            raise ValueError(
                "no item has content to make an ID from: give the catalogue texts "
                "(content.text_columns), or set a content.encoder other than none"
            )
        table = plain(config.semantic_ids)
        made = refit_ids(content, store, config.semantic_ids, table, seed=config.seed, cold=cold)
        store.publish(made.ids, made.quantizer, made.item_ids, made.origin)
    levels = " x ".join(map(str, made.ids.level_sizes))
    report_version(
        made.ids.version, f"{made.how}, {made.num_with_id:,} items, levels {levels}", begin
    )
    if made.kept is not None:
        out.print(kept_table(made.kept))
    elif made.ids.parent is not None:
        log.print(
            f"version {made.ids.parent[:SHORT]} had other levels, so no ID is kept, and models "
            "that read IDs must be trained from scratch",
            style="yellow",
        )


@app.command()
@on_a_run
def append(config: RunConfig) -> None:
    """Give IDs to items of the catalogue that have none yet; published IDs stay.

    [bold]Example[/] recsys ids append --config shop.toml
    """
    from pipelines.semantic_ids.versions import append_new

    begin = time.perf_counter()
    with opened(config) as (content, _):
        store = store_with_versions(config)
        previous = store.previous()
        assert previous is not None
        encoders = [previous.origin.get("encoder"), content.encoder]
        if encoders[0] != encoders[1]:
            raise ValueError(
                f"the published IDs were made from the vectors of encoder {encoders[0]}, this "
                f"catalogue was encoded by {encoders[1]}; fit again with recsys ids train"
            )
        made = append_new(content, store, previous)
        if made.how == "appended":
            store.publish(made.ids, made.quantizer, made.item_ids, made.origin)
    if made.how == "kept":
        out.print(
            f"nothing to append: all {made.num_with_id:,} items with content have an ID in "
            f"version {made.ids.version[:SHORT]}"
        )
    else:
        report_version(made.ids.version, f"{made.num_new:,} new, no published ID moved", begin)


@app.command()
@on_a_run
def align(
    config: RunConfig,
    new: Annotated[str, typer.Argument(help="Version whose codes are renamed.")],
    old: Annotated[
        str | None, typer.Argument(help="Version to match; the current one by default.")
    ] = None,
) -> None:
    """Rename the codes of a version so that most items have their ID of another, and publish it.

    [bold]Example[/] recsys ids align 3f2a 91bc --config shop.toml
    """
    from recsys.semantic_ids.lifecycle import align as align_versions

    begin = time.perf_counter()
    store = store_with_versions(config)
    current = store.current()
    published = store.previous(store.named(new))
    target = store.versions.load(None if old is None else store.named(old))
    assert published is not None
    made = align_versions(published.ids, published.quantizer, target)
    store.publish(made.ids, made.quantizer, store.item_ids, published.origin, after=current)
    report_version(made.ids.version, f"aligned to {target.version[:SHORT]}", begin)
    out.print(kept_table(made.kept, made.before))


@app.command()
@on_a_run
def diff(
    config: RunConfig,
    old: Annotated[str, typer.Argument(help="Earlier version; its first letters are enough.")],
    new: Annotated[
        str | None, typer.Argument(help="Later version; the current one by default.")
    ] = None,
    listed: Annotated[int, typer.Option("--list", min=0, help="Number of items to list.")] = 10,
) -> None:
    """Show which items gained, changed or lost their ID between two versions.

    [bold]Example[/] recsys ids diff 3f2a --config shop.toml
    """
    from recsys.semantic_ids.delta import changed_rows
    from recsys.semantic_ids.lifecycle import kept_shares

    store = store_with_versions(config)
    before = store.versions.load(store.named(old))
    after = store.versions.load(None if new is None else store.named(new))
    changes = {name: rows.tolist() for name, rows in changed_rows(before, after).items()}
    counts = ", ".join(f"{len(rows):,} {what}" for what, rows in changes.items())
    out.print(f"{before.version[:SHORT]} -> {after.version[:SHORT]}: {counts}", soft_wrap=True)
    if before.level_sizes == after.level_sizes:
        out.print(kept_table(kept_shares(after, before)))
    else:
        out.print(f"levels {before.level_sizes} became {after.level_sizes}, so no ID is kept")
    shown = [
        (row, what) for what in ("moved", "retired", "added") for row in changes[what][:listed]
    ]
    if shown[:listed]:
        table = Table("item", "what", "before", "after", box=box.SIMPLE_HEAD)
        for row, what in shown[:listed]:
            ids = [one.text(row) if row < one.num_item_rows else "" for one in (before, after)]
            table.add_row(store.item_ids[row - 1], what, *(text or "-" for text in ids))
        out.print(table)


@app.command()
@on_a_run
def rollback(
    config: RunConfig,
    version: Annotated[
        str | None, typer.Argument(help="Version to go back to; the previous one by default.")
    ] = None,
) -> None:
    """Make an earlier version current again; served bundles keep their IDs.

    [bold]Example[/] recsys ids rollback --config shop.toml
    """
    store = store_with_versions(config)
    before, begin = store.current(), time.perf_counter()
    now = store.rollback(None if version is None else store.named(version))
    report_version(now, f"current again (before: {str(before)[:SHORT]})", begin)


@app.command()
@on_a_run
def report(
    config: RunConfig,
    html: Annotated[
        Path | None, typer.Option("--out", "-o", help="HTML file; the JSON is written beside it.")
    ] = None,
    previous: Annotated[
        str | None, typer.Option(help="Version to compare with; the parent by default.")
    ] = None,
    show: Open = False,
) -> None:
    """Write a report on the quality of the IDs as one self-contained HTML file and JSON.

    [bold]Example[/] recsys ids report --config shop.toml --out ids.html
    """
    from pipelines.pages.semantic_ids.data import reported_version
    from pipelines.pages.semantic_ids.page import write_semantic_id_report

    with opened(config) as (content, store):
        reported = reported_version(content, store, config, previous)
        path = html or config.workspace / "semantic_ids.html"
        path.parent.mkdir(parents=True, exist_ok=True)
        write_semantic_id_report(reported, path)
    out.print(str(path), markup=False, soft_wrap=True)
    if show:
        webbrowser.open(path.absolute().as_uri())
