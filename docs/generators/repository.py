"""Where each file of the repository is in the site, and links between them.

Pages keep links that are right in the repository; the site shows what they name: other pages,
results, and, as pages of their own, source files and folders.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
RESULTS = ROOT / "tests" / "benchmarks" / "results"
SOURCE = "source"
GENERATED = (
    "reference/command-line.md",
    "reference/configuration.md",
    "reference/settings.md",
    "reference/http.md",
    "reference/python.md",
    "results/missed.md",
    "results/commands.md",
    "stages/index.md",
    "pictures/data-flow.svg",
    "pictures/request.svg",
    "pictures/stages.svg",
)
"""Pages and pictures that are made at each build, by their place in the site."""
PAGES = {
    ROOT / "README.md": "index.md",
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    RESULTS / "README.md": "results/index.md",
    RESULTS: "results/index.md",
    DOCS / "decisions": "decisions/README.md",
}
AS_THEY_ARE = {".png", ".svg", ".csv", ".json", ".jsonl", ".parquet", ".html", ".gif"}
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".ts": "typescript", ".sh": "bash"}
FENCE = re.compile(r"^(```+|~~~+)")
ITEM = re.compile(r"(?:[-*+]|\d+\.) ")
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")


def package_version() -> str:
    """Read the version that is built."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        version: str = tomllib.load(file)["project"]["version"]
    return version


def uri_of(path: Path) -> str:
    """Name the site's file of a file or folder of the repository."""
    if path in PAGES:
        return PAGES[path]
    inside, prefix = path.relative_to(ROOT), f"{SOURCE}/"
    for folder, place in ((DOCS, ""), (RESULTS, "results/")):
        if path.is_relative_to(folder):
            inside, prefix = path.relative_to(folder), place
    uri = prefix + inside.as_posix()
    if path.is_dir():
        return f"{uri}/{'README' if (path / 'README.md').exists() else 'index'}.md"
    return uri if path.suffix == ".md" or path.suffix in AS_THEY_ARE else f"{uri}.md"


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Change the lines of a page that are not in a fenced block."""
    lines, fence = [], ""
    for line in text.splitlines(keepends=True):
        opened = FENCE.match(line.lstrip())
        if opened and not fence:
            fence = opened[1]
        elif opened and opened[1].startswith(fence):
            fence = ""
        elif not fence:
            line = change(line)
        lines.append(line)
    return "".join(lines)


def with_lists_apart(text: str) -> str:
    """Put a blank line before each list that follows a paragraph at once, as GitHub reads it."""
    before, in_list = "", False

    def apart(line: str) -> str:
        nonlocal before, in_list
        starts = ITEM.match(line) is not None
        missing = starts and not in_list and before.strip() != ""
        in_list = (in_list or starts) and line.strip() != ""
        before = line
        return f"\n{line}" if missing else line

    return outside_fences(text, apart)


def target_of(link: str, origin: Path) -> Path | None:
    """Resolve a page's link to what it names in the repository; None where it names no file."""
    if re.match(r"\w+:|/", link):
        return None
    target = Path(os.path.normpath(origin.parent / link))
    return target if target.is_relative_to(ROOT) and target.exists() else None


def linked_paths(text: str, origin: Path) -> Iterator[Path]:
    """List the files and folders that a page links to."""
    found: list[Path] = []

    def collect(line: str) -> str:
        for match in LINK.finditer(line):
            target = target_of(match[2], origin)
            if target is not None:
                found.append(target)
        return line

    outside_fences(text, collect)
    yield from dict.fromkeys(found)


def with_site_links(text: str, origin: Path, uri: str) -> str:
    """Turn a page's links within the repository into links within the site."""

    def place(match: re.Match[str]) -> str:
        target = target_of(match[2], origin)
        if target is None:
            return match[0]
        found = uri_of(target)
        anchor = match[3] or ""
        if found.startswith(SOURCE) and target.suffix != ".md":
            anchor = ""
        away = os.path.relpath(found, PurePosixPath(uri).parent)
        return f"{match[1]}{away}{anchor}{match[4]}"

    return outside_fences(text, lambda line: LINK.sub(place, line))


def source_page(path: Path) -> str:
    """Show a source file, or list a folder."""
    name = path.relative_to(ROOT).as_posix()
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {name}\n\n"
    if path.is_dir():
        inside = sorted(one for one in path.iterdir() if not one.name.startswith((".", "__")))
        return head + "\n".join(f"- `{one.name}{'/' * one.is_dir()}`" for one in inside) + "\n"
    text = path.read_text(encoding="utf-8")
    language = LANGUAGES.get(path.suffix, "text")
    return f"{head}````{language}\n{text.rstrip()}\n````\n"
