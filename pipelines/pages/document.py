"""Pages of the dashboard as plain values: a browser draws them, a test reads them.

Strings are text: nothing in them is markup, not even in titles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Tone = Literal["plain", "good", "bad", "note"]
Format = Literal["", "metric", "count", "percent", "seconds", "bytes", "signed", "time"]
Cell = str | float | int | bool | None
Parameters = Mapping[str, str | tuple[str, ...]]
"""Values of a page by name, as in its address."""


@dataclass(frozen=True, kw_only=True)
class Link:
    """To a page of the dashboard, or to a file of a run."""

    label: str
    page: str | None = None
    parameters: Parameters = field(default_factory=dict)
    file: str | None = None
    """``<run key>/<path below the run>`` of a file."""


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Run and digests that the numbers of a block were computed from."""

    run: str
    """Key of the run; "" for none, such as of a backtest alone."""
    name: str
    config_digest: str | None
    data_digest: str | None


@dataclass(frozen=True, kw_only=True)
class LinkedCell:
    """A cell of a table that leads somewhere."""

    text: str
    link: Link
    sort: Cell = None
    """Sort value; the text by default."""


@dataclass(frozen=True, kw_only=True)
class Words:
    """A paragraph, or a list of them."""

    lines: Sequence[str]
    tone: Tone = "plain"
    links: Sequence[Link] = ()
    kind: Literal["words"] = "words"


@dataclass(frozen=True, kw_only=True)
class Tile:
    """One number that is read at a glance."""

    label: str
    value: str
    note: str = ""
    tone: Tone = "plain"
    link: Link | None = None


@dataclass(frozen=True, kw_only=True)
class Tiles:
    """Numbers side by side."""

    tiles: Sequence[Tile]
    kind: Literal["tiles"] = "tiles"


@dataclass(frozen=True, kw_only=True)
class Chart:
    """A chart with the table of its values, which a reader can open and download."""

    key: str
    """Unique on its page."""
    title: str
    note: str
    """Reading help, in a sentence or two."""
    spec: Mapping[str, Any]
    """Vega-Lite (`pipelines.pages.charts`); axes name their units."""
    columns: Sequence[str | Column]
    rows: Sequence[Sequence[Cell]]
    legend: Mapping[str, str] = field(default_factory=dict)
    """Colour by series; the page draws it."""
    origins: Sequence[Origin] = ()
    kind: Literal["chart"] = "chart"


@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a table."""

    label: str
    note: str = ""
    """Tooltip of the label."""
    numeric: bool = False
    """Right-aligned, sorted by number."""
    format: Format = ""
    """Format of numbers: ``metric`` .1234, ``signed`` +.0123, ``seconds`` 1 h 2 min."""


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table to sort, search, page and download; ``source`` names a function of its rows."""

    key: str
    title: str
    note: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell | LinkedCell]] = ()
    source: str | None = None
    page_length: int = 25
    origins: Sequence[Origin] = ()
    kind: Literal["table"] = "table"


@dataclass(frozen=True, kw_only=True)
class Entry:
    """An item of a list."""

    item_id: str
    title: str
    note: str = ""
    mark: Literal["", "hit", "seen"] = ""
    link: Link | None = None


@dataclass(frozen=True, kw_only=True)
class ItemList:
    """One list of items, best first."""

    title: str
    note: str = ""
    entries: Sequence[Entry] = ()
    empty: str = "no items"
    """Text without entries."""


@dataclass(frozen=True, kw_only=True)
class Lists:
    """Lists of items side by side; the same item is highlighted in all of them."""

    key: str
    lists: Sequence[ItemList]
    origins: Sequence[Origin] = ()
    kind: Literal["lists"] = "lists"


@dataclass(frozen=True, kw_only=True)
class Code:
    """Text to copy as it is, such as a configuration; folded away at first."""

    key: str
    title: str
    text: str
    kind: Literal["code"] = "code"


@dataclass(frozen=True, kw_only=True)
class Section:
    """A part of a page under its heading."""

    key: str
    title: str
    blocks: Sequence[Block]
    note: str = ""
    kind: Literal["section"] = "section"


Numbered = Chart | Table | Lists
Block = Words | Tiles | Numbered | Code | Section


def with_origins(section: Section, origins: Sequence[Origin]) -> Section:
    """Add the runs that the numbers of a section are from."""

    def named(block: Block) -> Block:
        if isinstance(block, Section):
            return with_origins(block, origins)
        return replace(block, origins=origins) if isinstance(block, Numbered) else block

    return replace(section, blocks=[named(block) for block in section.blocks])


@dataclass(frozen=True, kw_only=True)
class Option:
    """A value that can be chosen."""

    value: str
    label: str


@dataclass(frozen=True, kw_only=True)
class Control:
    """Something that changes a parameter of the page, and with it what the page shows."""

    name: str
    label: str
    kind: Literal["select", "several", "search", "number"]
    value: str | tuple[str, ...] = ""
    options: Sequence[Option] = ()
    """Choices of ``select`` and ``several``."""
    suggest: str | None = None
    """Suggest function of the page, which finds options as the reader types."""
    least: float | None = None
    most: float | None = None
    at_most: int | None = None
    """Largest number of choices of ``several``."""
    clears: Sequence[str] = ()
    """Parameters that another value of this one makes meaningless, such as ``model`` of a run."""


def select(
    name: str, label: str, value: str, options: Mapping[str, str], clears: Sequence[str] = ()
) -> Control:
    """Offer a few values, each with its label."""
    found = [Option(value=one, label=words) for one, words in options.items()]
    return Control(name=name, label=label, kind="select", value=value, options=found, clears=clears)


@dataclass(frozen=True, kw_only=True)
class Page:
    """A page."""

    title: str
    lead: str
    """Purpose or answer of the page, in a sentence."""
    blocks: Sequence[Block]
    controls: Sequence[Control] = ()
    notices: Sequence[str] = ()
    """Warnings, such as a missing store or a half-written run."""


@dataclass(frozen=True, kw_only=True)
class Window:
    """The part of a table that is shown."""

    start: int = 0
    length: int = 25
    order_by: int | None = None
    """Position of the column."""
    descending: bool = False
    search: str = ""


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Rows of a window."""

    total: int
    found: int
    """Rows that the search leaves."""
    rows: Sequence[Sequence[Cell | LinkedCell]]
