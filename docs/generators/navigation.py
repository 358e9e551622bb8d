"""The navigation: entries ``<folder>/*`` of mkdocs.yml become the pages of that folder."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from docs.generators.repository import DOCS, RESULTS, uri_of


def named_in(nav: Any) -> Iterator[str]:
    """List the pages that a navigation names."""
    if isinstance(nav, str):
        yield nav
    else:
        for part in nav.values() if isinstance(nav, dict) else nav:
            yield from named_in(part)


def pages_of(entry: str, named: set[str]) -> list[Any]:
    """List the pages that an entry stands for.

    Args:
        entry: ``decisions/*``, ``results/*``, ``more/*`` for pages named nowhere, or a page.
        named: What the whole navigation names.
    """
    if entry == "decisions/*":
        pages = sorted((DOCS / "decisions").glob("*.md"))
        return [uri_of(page) for page in pages if page.name != "README.md"]
    if entry == "results/*":
        folders = sorted(one for one in RESULTS.iterdir() if one.is_dir())
        return [
            {title(one.name): [uri_of(page) for page in sorted(one.glob("*.md"))]}
            for one in folders
        ]
    if entry == "more/*":
        pages = sorted(DOCS.rglob("*.md"))
        found = [uri_of(page) for page in pages if page.parent != DOCS / "decisions"]
        return [page for page in found if page not in named]
    return [entry]


def title(folder: str) -> str:
    return folder.replace("_", " ").capitalize()


def filled(nav: Any, named: set[str] | None = None) -> Any:
    """Replace the entries of a navigation that stand for several pages."""
    named = set(named_in(nav)) if named is None else named
    if isinstance(nav, dict):
        return {name: filled(part, named) for name, part in nav.items()}
    if not isinstance(nav, list):
        return nav
    entries: list[Any] = []
    for entry in nav:
        entries += pages_of(entry, named) if isinstance(entry, str) else [filled(entry, named)]
    return entries
