"""Write results/README.md: every committed result with its device and the goals it met.

Run it as ``python -m tests.benchmarks.index`` after a result has changed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import RESULTS, ROOT, first_sentence

INDEX = RESULTS / "README.md"
HEAD = """# Results

Every number is made by the script that its page names, on the device named there; run it from
the repository's root to measure again. A goal was set before its number was measured, and a missed
one stays in the page, marked as missed. A result marked "uncommitted" was measured from its commit
with changes that were not committed yet, so its number cannot be made again exactly; the next
measurement takes its place. `python -m tests.benchmarks.index` writes this list.

A result marked "script in history" supports a decision that is not measured again. Its page names
the commit, and `git show COMMIT:PATH` prints the script; `git log --diff-filter=D -- PATH` finds
the commit that removed it.

Each page has its JSON next to it, one line a measurement. Each look at a test split is a line in
[test_split_ledger.jsonl](test_split_ledger.jsonl).
"""


def index() -> str:
    """Table of the results of each subject."""
    lines = [HEAD]
    for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir()):
        lines += [f"## {folder.name}", "", "| result | what | device | goals met |"]
        lines.append("| --- | --- | --- | --- |")
        lines += [line_of(f"{folder.name}/{page.stem}") for page in sorted(folder.glob("*.md"))]
        lines.append("")
    return "\n".join(lines)


def line_of(result: str) -> str:
    path = RESULTS / f"{result}.json"
    document: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    what = ""
    if script := document.get("script"):
        source = Path(*script.split(".")).with_suffix(".py")
        link = f"../{source.relative_to('tests/benchmarks')}"
        if (ROOT / source).exists():
            what = f"[{first_sentence(ROOT / source)}]({link})"
        else:
            what = f"{opening(RESULTS / f'{result}.md')} (script in history)"
    rows = [row for row in document.get("rows", []) if "met" in row]
    goals = f"{sum(row['met'] for row in rows)} of {len(rows)}" if rows else ""
    device = document.get("device", "")
    device = device if isinstance(device, str) else "; ".join(device)
    name = result.partition("/")[2]
    mark = " (uncommitted)" if str(document.get("commit", "")).endswith("+") else ""
    return f"| [{name}]({result}.md){mark} | {what} | {device} | {goals} |"


def opening(page: Path) -> str:
    """First sentence of a page below its title."""
    return page.read_text().split("\n\n")[1].split(". ")[0].rstrip(".")


if __name__ == "__main__":
    INDEX.write_text(index())
    print(INDEX)
