"""Pictures as SVG, drawn from boxes and arrows; they need no script and no network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from html import escape
from itertools import pairwise
from typing import NamedTuple

from pipelines.stages.list import STAGES

WIDTH, HEIGHT, GAP_X, GAP_Y = 168, 46, 34, 38
STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#1b1f24;text-anchor:middle}"
    ".s{font-size:11px;fill:#57606a}rect{fill:#fff;stroke:#5c6bc0;stroke-width:1.4}"
    ".back{fill:#f4f5fb;stroke:none}path{fill:none;stroke:#7986cb;stroke-width:1.4}"
)


class Box(NamedTuple):
    """A step, at a column and a row of the picture."""

    name: str
    column: float
    row: float
    text: str
    note: str = ""


def picture(title: str, boxes: Iterable[Box], arrows: Iterable[tuple[str, str]]) -> str:
    """Draw boxes, and arrows from one's lower edge to another's upper one."""
    placed = {box.name: box for box in boxes}
    columns = max(box.column for box in placed.values()) + 1
    rows = max(box.row for box in placed.values()) + 1
    width, height = columns * (WIDTH + GAP_X) + GAP_X, rows * (HEIGHT + GAP_Y) + GAP_Y
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" role="img"><title>{escape(title)}</title><style>{STYLE}</style>'
        '<defs><marker id="a" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path d="M0 0L8 4L0 8z" style="fill:#7986cb;stroke:none"/></marker></defs>'
        f'<rect class="back" width="{width:g}" height="{height:g}" rx="10"/>'
    ]
    for start, end in arrows:
        parts.append(arrow(placed[start], placed[end]))
    for box in placed.values():
        x, y = corner(box)
        middle, line = x + WIDTH / 2, y + HEIGHT / 2 + (-3 if box.note else 5)
        parts.append(f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="7"/>')
        parts.append(f'<text x="{middle:g}" y="{line:g}">{escape(box.text)}</text>')
        if box.note:
            note = escape(box.note)
            parts.append(f'<text class="s" x="{middle:g}" y="{line + 16:g}">{note}</text>')
    return "".join([*parts, "</svg>"])


def corner(box: Box) -> tuple[float, float]:
    return GAP_X + box.column * (WIDTH + GAP_X), GAP_Y + box.row * (HEIGHT + GAP_Y)


def arrow(start: Box, end: Box) -> str:
    (x0, y0), (x1, y1) = corner(start), corner(end)
    if start.row == end.row:
        forwards = end.column > start.column
        x0, x1 = (x0 + WIDTH, x1 - 2) if forwards else (x0, x1 + WIDTH + 2)
        y0 = y1 = y0 + HEIGHT / 2
        return f'<path marker-end="url(#a)" d="M{x0:g} {y0:g}L{x1:g} {y1:g}"/>'
    x0, x1, y0, y1 = x0 + WIDTH / 2, x1 + WIDTH / 2, y0 + HEIGHT, y1 - 2
    bend = (y1 - y0) / 2
    curve = f"M{x0:g} {y0:g}C{x0:g} {y0 + bend:g} {x1:g} {y1 - bend:g} {x1:g} {y1:g}"
    return f'<path marker-end="url(#a)" d="{curve}"/>'


def data_flow() -> str:
    """Draw the way from raw events to a reply."""
    boxes = [
        Box("raw", 1, 0, "events, items, users", "CSV, Parquet, JSON lines"),
        Box("sequences", 1, 1, "sequences", "checked, split by time"),
        Box("content", 0, 1, "content embeddings", "of item texts"),
        Box("ids", 0, 2, "semantic IDs", "codes, trie"),
        Box("counted", 1, 2, "counted, solved", "popularity, i2i, EASE"),
        Box("trained", 2, 2, "trained", "two-tower, sequence"),
        Box("generative", 0, 3, "generative model", "beam search over IDs"),
        Box("blend", 1, 3, "blend", "weights from validation"),
        Box("ranker", 1, 4, "ranker", "multi-task, experts"),
        Box("gate", 1, 5, "evaluation, gate", "against the champion"),
        Box("bundle", 1, 6, "bundle", "verified, immutable"),
        Box("serving", 1, 7, "serving", "filter, blend, rank"),
        Box("online", 2, 7, "online store", "what visitors do"),
    ]
    arrows = [
        ("raw", "sequences"), ("raw", "content"), ("content", "ids"), ("sequences", "counted"),
        ("sequences", "trained"), ("content", "counted"), ("ids", "generative"),
        ("trained", "blend"), ("counted", "blend"), ("generative", "blend"), ("blend", "ranker"),
        ("ranker", "gate"), ("gate", "bundle"), ("bundle", "serving"), ("serving", "online"),
    ]  # fmt: skip
    return picture("From raw events to a served list", boxes, arrows)


def request_path() -> str:
    """Draw what happens to one request."""
    steps = [
        ("hydrate", "ids, history, context"),
        ("filter", "one mask of items"),
        ("retrieve", "a list a source"),
        ("blend", "learned weights"),
        ("rank", "first 200 candidates"),
        ("arrange", "rules, diversity"),
        ("reply", "and what was degraded"),
    ]
    boxes = [
        Box(name, place % 2, place // 2, name, note) for place, (name, note) in enumerate(steps)
    ]
    names = [name for name, _ in steps]
    return picture("One request", boxes, pairwise(names))


def waits_for(reads: Mapping[str, tuple[str, ...]], name: str) -> list[str]:
    """Name the stages that a stage waits for, less those that these wait for already."""

    def before(one: str) -> set[str]:
        return {each for read in reads[one] for each in (read, *before(read))}

    return [one for one in reads[name] if not any(one in before(other) for other in reads[name])]


def stage_graph() -> str:
    """Draw the stages, each below all that it waits for."""
    reads = {stage.name: stage.reads for stage in STAGES}
    depth: dict[str, int] = {}
    for stage in STAGES:
        depth[stage.name] = 1 + max((depth[one] for one in stage.reads), default=-1)
    in_row: dict[int, list[str]] = {}
    for name, row in depth.items():
        in_row.setdefault(row, []).append(name)
    column: dict[str, float] = {}
    for names in in_row.values():
        # A stage alone in its row stands below the last one that it waits for.
        waited = waits_for(reads, names[0])
        before = max(waited, key=depth.__getitem__, default="")
        for place, name in enumerate(names):
            alone = len(names) == 1 and before
            column[name] = column[before] if alone else place + (3 - len(names)) / 2
    boxes = [Box(name, column[name], row, name) for name, row in depth.items()]
    arrows = [(one, name) for name in reads for one in waits_for(reads, name)]
    return picture("The stages of a run", boxes, arrows)
