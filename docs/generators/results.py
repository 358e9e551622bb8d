"""The pages of results: all measurements, and the goals that were not reached."""

from __future__ import annotations

import json
import re

from docs.generators.repository import RESULTS
from docs.generators.text import prose, table

MISSED_HEAD = """# Goals that were not reached

Goals were set before their numbers were measured. These are the missed ones, from the same files as
the [results](index.md); each links to its page, which says how it was measured.

"""

COMMANDS_HEAD = """# By command

`python -m tests.benchmarks.reproduction` runs the tables of accuracy, `recsys backtest` the replay
along time. What else is measured has a script; run it from the repository's root, and it writes its
page again.

"""


def results_index() -> str:
    """Write the index of results as it lies in the repository, with what was missed named first."""
    text = (RESULTS / "README.md").read_text(encoding="utf-8")
    # The page that lists them is made at the build.
    head, rest = text.split("\n## ", 1)
    missed = "[Goals that were not reached](missed.md) are listed on a page of their own."
    return f"{head}\n{missed}\n\n## {rest}"


def commands_page() -> str:
    """List, for each command that measures, the pages that it writes."""
    rows = []
    for path in sorted(RESULTS.rglob("*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        page = path.with_suffix(".md")
        if isinstance(found, dict) and "script" in found and page.exists():
            place = page.relative_to(RESULTS)
            device = found.get("device", "")
            where = device if isinstance(device, str) else "; ".join(device)
            rows.append(
                (f"`python -m {found['script']}`", f"[{place.stem}]({place})", prose(where))
            )
    by_command = table(("command", "writes", "measured on"), sorted(rows))
    return f"{COMMANDS_HEAD}{by_command}"


def missed_page() -> str:
    """List the missed goals of every result, by subject."""
    parts = [MISSED_HEAD]
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        lines = []
        for path in sorted(folder.glob("*.json")):
            found = json.loads(path.read_text(encoding="utf-8"))
            measured = found.get("rows", []) if isinstance(found, dict) else []
            link = f"[{path.stem}]({folder.name}/{path.stem}.md)"
            lines += [
                f"- {link}, {prose(one['name'])}: {number(one)}, goal {prose(one['goal'])}"
                for one in measured
                if one.get("met") is False and path.with_suffix(".md").exists()
            ]
        if lines:
            parts += [f"## {folder.name}\n", "\n".join(lines) + "\n"]
    return "\n".join(parts)


def number(one: dict[str, object]) -> str:
    value = one["value"]
    shown = f"{value:.4g}" if isinstance(value, float) else str(value)
    ratio = one.get("ratio")
    against = (
        f" ({ratio:.3g}x of {one['peer']})" if isinstance(ratio, float) and "peer" in one else ""
    )
    return prose(re.sub(r"\s+", " ", f"{shown} {one.get('unit', '')}{against}".strip()))
