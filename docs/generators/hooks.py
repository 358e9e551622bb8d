"""What mkdocs calls while it builds the site: adds generated pages, mends links, names the version.

Usage: python -m mkdocs build --strict
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

from docs.generators import repository
from docs.generators.command_line import command_line_page
from docs.generators.configuration import configuration_page, settings_page
from docs.generators.http import http_page
from docs.generators.navigation import filled
from docs.generators.pictures import data_flow, request_path, stage_graph
from docs.generators.python import python_page
from docs.generators.results import commands_page, missed_page, results_index
from docs.generators.stages import stage_facts, stages_page

MAKERS = dict(
    zip(
        repository.GENERATED,
        (
            command_line_page,
            configuration_page,
            settings_page,
            http_page,
            python_page,
            missed_page,
            commands_page,
            stages_page,
            data_flow,
            request_path,
            stage_graph,
        ),
        strict=True,
    )
)
RESULTS = {"results/index.md": results_index}
BOOSTS = {"faq": 2.0, "changelog": 0.3, "examples/": 0.3, "install": 0.3, "licences": 0.3}
"""Weight of pages in a search by how their names begin."""
UNSEARCHED = ("decisions/", "stages/", "results/", "source/", "contributing")
"""Pages for developers, by how their names begin: a search of the site leaves them out."""
ORIGINS: dict[str, Path] = {}
"""File of the repository that a page comes from, by the page's place in the site."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the version into the header, and all results and decisions into the navigation."""
    config.site_name = f"{config.site_name} {repository.package_version()}"
    config.nav = filled(config.nav)
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add generated pages, the pages outside docs/ and whatever those pages link to."""
    ORIGINS.clear()
    waiting = [repository.ROOT / "CHANGELOG.md", repository.ROOT / "CONTRIBUTING.md"]
    for uri, make in MAKERS.items():
        files.append(File.generated(config, uri, content=make()))
    waiting += sorted(repository.RESULTS.rglob("*.md"))
    for file in files.documentation_pages():
        origin = repository.DOCS / file.src_uri
        if origin.exists():
            ORIGINS[file.src_uri] = origin
            waiting += repository.linked_paths(file.content_string, origin)
    while waiting:
        path = waiting.pop()
        uri = repository.uri_of(path)
        if uri in files.src_uris:
            continue
        if path.suffix in repository.AS_THEY_ARE:
            files.append(File.generated(config, uri, abs_src_path=str(path)))
            continue
        text = page_text(path, uri)
        if path.suffix == ".md":
            ORIGINS[uri] = path
            waiting += repository.linked_paths(text, path)
        listed = not uri.startswith(repository.SOURCE) and not path.is_dir()
        inclusion = InclusionLevel.INCLUDED if listed else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, uri, content=text, inclusion=inclusion))
    return files


def page_text(path: Path, uri: str) -> str:
    """Read a page that lies outside docs/, or make one of a source file or a folder."""
    if uri in RESULTS:
        return RESULTS[uri]()
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    return repository.source_page(path)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fill in what a page's markers name, and turn its links into the site's."""
    uri = page.file.src_uri
    boost = next((weight for name, weight in BOOSTS.items() if uri.startswith(name)), 1.0)
    found = {"exclude": True} if uri.startswith(UNSEARCHED) else {"boost": boost}
    page.meta.setdefault("search", found)
    markdown = re.sub(r"^<!-- stage (\w+) -->$", lambda m: stage_facts(m[1]), markdown, flags=re.M)
    # Markdown ends a comment at a blank line only.
    markdown = re.sub(r"^(<!-- .*? -->)\n(?=\|)", r"\1\n\n", markdown, flags=re.M)
    markdown = repository.with_lists_apart(markdown)
    if uri in ORIGINS:
        markdown = repository.with_site_links(markdown, ORIGINS[uri], uri)
    return markdown
