"""Docstrings and help texts as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


def prose(text: str) -> str:
    """Escape what Markdown would read as HTML, outside code; turn ``name`` into `name`."""
    text = re.sub(r"``(.+?)``", r"`\1`", text, flags=re.DOTALL)
    parts = re.split(r"(`[^`]+`)", text)
    return "".join(part if part.startswith("`") else escaped(part) for part in parts)


def escaped(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([*_\[\]])", r"\\\1", text)


def code(text: str) -> str:
    """Write a value as inline code, also where it holds a bar of a table."""
    return f"`{text}`" if text else ""


def entries(rows: Iterable[tuple[str, str, str, str]]) -> str:
    """List named things: name, type and default on a line, what they are below; reads well narrow.

    Args:
        rows: Name, type, default and text of each; a default of "required" is written as it is.
    """
    lines = []
    for name, kind, default, what in rows:
        first = f"`{name}`" + (f" ({kind})" if kind else "")
        if default:
            first += f", {default}" if default == "required" else f", default {default}"
        flat = " ".join(what.split())
        lines.append(f"- {first}" + (f"<br>{flat}" if flat else ""))
    return "\n".join(lines) + "\n" if lines else ""


def row(cells: Iterable[str]) -> str:
    flat = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(flat)} |"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table; empty where there are no rows."""
    lines = [row(cells) for cells in rows]
    if not lines:
        return ""
    return "\n".join([row(head), row(["---"] * len(head)), *lines]) + "\n"
