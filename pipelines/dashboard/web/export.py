"""Runs as one HTML file that opens anywhere: the same documents, with everything that draws them.

The file may reach nothing: its policy names its own scripts and styles by their digests.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipelines.dashboard.context import Context, PageEntry
from pipelines.dashboard.document import Block, Page, Section, Table, Window, Words
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.runs.run import Run
from pipelines.dashboard.runs.stores import Stores
from pipelines.dashboard.web.app import built
from pipelines.dashboard.web.assets import STYLES, assets
from pipelines.dashboard.web.encoding import encoded, for_script
from pipelines.dashboard.web.modules import one_script
from pipelines.dashboard.web.shell import FIRST, LATER, SHELL, filled, navigation
from recsys.data.durable import write_durably

MAX_BYTES = 5_000_000
MAX_ROWS = 200
"""Of a table that comes by windows where it is served."""
TABLE_EXPORTS = re.compile(r"export\{[^}]*?([\w$]+) as default[^}]*\};?")


@dataclass(frozen=True, kw_only=True)
class Document:
    """A page as the file holds it."""

    name: str
    parameters: dict[str, tuple[str, ...]]
    page: Page


def find_runs(stores: Stores, wanted: Sequence[str]) -> list[Run]:
    """Find runs by their keys or folders; the newest complete one where none is named.

    Raises:
        ValueError: There is no such run.
    """
    known = stores.runs()
    if not wanted:
        newest = [run for run in known if run.kind == "workspace" and run.status == "complete"][:1]
        if not newest:
            raise ValueError("there is no complete run to export; recsys demo makes one")
        return newest
    found = []
    for name in wanted:
        place = Path(name).resolve()
        same = [run for run in known if run.key == name]
        same += [run for run in known if run.path is not None and run.path.resolve() == place]
        if not same:
            keys = ", ".join(f"{run.key} ({run.name})" for run in known[:10]) or "none"
            raise ValueError(f"--run {name} is no run's key or folder; the newest are: {keys}")
        found.append(same[0])
    return found


def queries_of(entry: PageEntry, context: Context, keys: Sequence[str]) -> Sequence[Query]:
    """Name the queries of a page that a file about runs holds."""
    together = Query.of(run=keys[0], runs=tuple(keys) if len(keys) > 1 else None)
    if entry.exports is not None:
        return entry.exports(context, together)
    return [together, *(Query.of(run=key) for key in keys if len(keys) > 1)]


def pages_of(entry: PageEntry, context: Context, keys: Sequence[str]) -> list[Document]:
    """Make a page for the runs of a file; of a page that takes two, the first with each other.

    Raises:
        QueryError: The page cannot be of these runs.
        NotFoundError: They do not have what it shows.
    """
    try:
        return [document(entry, context, one) for one in queries_of(entry, context, keys)]
    except QueryError:
        if len(keys) <= 2:
            raise
    pairs = [(keys[0], other) for other in keys[1:]]
    return [one for pair in pairs for one in pages_of(entry, context, pair)]


def document(entry: PageEntry, context: Context, query: Query) -> Document:
    """Make a page as the file holds it."""
    page = built(context, entry, query)
    blocks = [with_rows(entry, context, query, one) for one in page.blocks]
    return Document(
        name=entry.name, parameters=dict(query.values), page=replace(page, blocks=blocks)
    )


def with_rows(entry: PageEntry, context: Context, query: Query, block: Block) -> Block:
    """Give a table that comes by windows its first rows."""
    if isinstance(block, Section):
        blocks = [with_rows(entry, context, query, one) for one in block.blocks]
        return replace(block, blocks=blocks)
    if not isinstance(block, Table) or block.source is None:
        return block
    rows = entry.rows[block.source](context, query, Window(length=MAX_ROWS))
    said = ""
    if rows.total > len(rows.rows):
        said = f" The first {len(rows.rows):,} of {rows.total:,} rows; recsys dashboard has all."
    return replace(block, rows=rows.rows, source=None, note=block.note + said)


def documents_of(
    context: Context, pages: Sequence[PageEntry], runs: Sequence[Run]
) -> tuple[list[Document], list[str]]:
    """Make all pages of runs; what cannot be shown of them is said in words instead."""
    documents: list[Document] = []
    left_out = []
    for entry in pages:
        try:
            documents += pages_of(entry, context, [run.key for run in runs])
        except (QueryError, NotFoundError) as error:
            left_out.append(f"{entry.title}: {error}")
    return documents, left_out


def _leaves(blocks: Sequence[Block], page: int) -> Iterator[tuple[int, int, Block]]:
    for block in blocks:
        if isinstance(block, Section):
            yield from _leaves(block.blocks, page)
        else:
            yield len(for_script(block)), page, block


def _without(block: Block, dropped: set[int]) -> Block:
    if isinstance(block, Section):
        return replace(block, blocks=[_without(one, dropped) for one in block.blocks])
    if id(block) not in dropped:
        return block
    title = getattr(block, "title", "") or "A part of this page"
    line = f"{title}: left out, so that this file stays small; recsys dashboard shows it."
    return Words(lines=[line], tone="note")


def fitted(documents: Sequence[Document], most: int) -> list[Document]:
    """Leave the largest blocks out until documents take at most so many bytes."""
    excess = len(for_script(documents)) - most
    dropped: set[int] = set()
    leaves = [
        leaf for place, one in enumerate(documents) for leaf in _leaves(one.page.blocks, place)
    ]
    for size, _, block in sorted(leaves, key=lambda leaf: -leaf[0]):
        if excess <= 0:
            break
        dropped.add(id(block))
        # What is said instead takes its room too.
        excess -= size - len(encoded(_without(block, dropped)))
    return [
        replace(
            one,
            page=replace(one.page, blocks=[_without(block, dropped) for block in one.page.blocks]),
        )
        for one in documents
    ]


def _inlined(source: str) -> str:
    """Make a script that cannot end its element, nor begin a comment of the page in it."""
    return re.sub("<(?=!--|/?script)", r"\\x3C", source, flags=re.IGNORECASE)


def scripts() -> list[str]:
    """Return the chart library, the table component and our modules, in that order."""
    text = {name: found.body.decode() for name, found in assets().items() if name.endswith(".js")}
    tables, count = TABLE_EXPORTS.subn(
        r"globalThis.recsys_datatables = { default: \1 };", text["datatables.js"]
    )
    assert count == 1, "the table component exports nothing as default"
    ours = {name: source for name, source in text.items() if name not in LATER}
    charts = f"{text['vega.js']}\nglobalThis.recsys_vega = globalThis.vegaEmbed;"
    return [_inlined(source) for source in (charts, tables, one_script(ours, FIRST))]


def _digest(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


def html_of(documents: Sequence[Document], pages: Sequence[PageEntry], title: str) -> str:
    """Write the file."""
    style = "\n".join(assets()[name].body.decode() for name in STYLES)
    code = scripts()
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_digest, code))}; "
        f"style-src {_digest(style)}; style-src-attr 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    without = filled(
        SHELL,
        policy=f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        title=title.translate({ord(sign): f"&#{ord(sign)};" for sign in "&<>"}),
        head=f"<style>{style}</style>",
        settings="SETTINGS",
        scripts="\n".join(f'<script type="module">{one}</script>' for one in code),
    )
    room = MAX_BYTES - len(without.encode()) - 10_000
    settings = {
        "pages": navigation(pages),
        "acts": False,
        "exported": fitted(documents, room),
    }
    head, tail = without.split(">SETTINGS<")
    return f"{head}>{for_script(settings)}<{tail}"


def write(
    context: Context, pages: Sequence[PageEntry], runs: Sequence[Run], path: Path
) -> Sequence[str]:
    """Write runs into one file; returns what it does not hold, in words.

    Raises:
        ValueError: Nothing of the runs can be shown.
    """
    documents, left_out = documents_of(context, pages, runs)
    if not documents:
        raise ValueError(f"nothing of these runs can be shown: {'; '.join(left_out)}")
    title = f"{', '.join(run.name for run in runs)} \u00b7 Recsys dashboard"
    text = html_of(documents, pages, title)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, text)
    return left_out
