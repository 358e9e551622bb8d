"""The page into which the browser draws documents."""

from __future__ import annotations

from collections.abc import Sequence

from pipelines.dashboard.context import PageEntry
from pipelines.dashboard.web.access import AccessRules
from pipelines.pages.assets import STYLES, assets, version
from pipelines.pages.encoding import for_script
from pipelines.pages.file import FIRST, LATER, SHELL, filled


def navigation(pages: Sequence[PageEntry]) -> list[dict[str, object]]:
    """List the pages as the browser knows them."""
    return [
        {
            "name": page.name,
            "title": page.title,
            "in_navigation": page.in_navigation,
            "keeps": list(page.keeps),
        }
        for page in pages
    ]


def served_shell(pages: Sequence[PageEntry], access: AccessRules) -> str:
    """Write the shell that loads its assets from the server."""
    folder = f"/assets/{version()}"
    modules = sorted((name for name in assets() if name.endswith(".js")), key=LATER.__contains__)
    head = [f'<link rel="stylesheet" href="{folder}/{name}">' for name in STYLES]
    head += [f'<link rel="modulepreload" href="{folder}/{name}">' for name in modules]
    settings = {"pages": navigation(pages), "acts": access.key is not None, "exported": None}
    return filled(
        SHELL,
        policy="",
        title="Recsys dashboard",
        head="\n".join(head),
        settings=for_script(settings),
        scripts=f'<script type="module" src="{folder}/{FIRST}"></script>',
    )
