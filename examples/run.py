"""Run an example: make its data, run its stages, say how good it is and what it recommends.

python -m examples.run news             writes below runs/examples/news
python -m examples.run news --page      also puts file and output into docs/examples/news.md
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path

from examples.data import MIRRORED, WORLDS, write
from pipelines.cli.main import app
from pipelines.engine.artifacts import read_json
from serving.recommend import Recommender
from serving.schemas import Request

ROOT = Path(__file__).parents[1]
EXAMPLES = ("movies", *WORLDS, *MIRRORED)
NUM_LISTS = 2
K = 5
TODAY = "available_from >= '2026-03-15'"
"""The last day of the news: a server's surface has such a filter of its own."""


def run(name: str, workspace: Path, settings: tuple[str, ...] = ()) -> str:
    """Run an example, with settings laid over its file, in a folder; return what is to be said.

    Raises:
        ValueError: There is no such example, or a stage says what is wrong.
    """
    if name not in EXAMPLES:
        raise ValueError(f"no example {name!r}; there are {', '.join(EXAMPLES)}")
    command = ["run", str(ROOT / "examples" / f"{name}.toml"), "--quiet"]
    if name != "movies":
        for table in write(name, workspace / "data"):
            place = str((workspace / "data" / f"{table}.csv").absolute())
            command += ["--set", f"data.{table}={json.dumps(place)}"]
    for one in (*settings, f"workspace={workspace}"):
        command += ["--set", one]
    ended = app(command, standalone_mode=False)
    if ended:
        raise ValueError(f"recsys {' '.join(command)} ended with {ended}")
    return "\n".join([*quality(workspace), *lists(name, workspace)]) + "\n"


def quality(workspace: Path) -> list[str]:
    """Lay out what is served beside popularity, on the last event of each user."""
    test = read_json(workspace / "evaluate" / "metrics.json")["given"]["test"]
    items = Recommender.load(workspace / "bundles" / "current").bundle.catalogue.num_item_rows - 1
    lines = [f"Last item of each user, all {items:,} items ranked:", ""]
    lines.append(f"  {'':<12} recall@10  ndcg@10")
    for title, model in (("popularity", "popularity"), ("served", "blend")):
        found = test[model]
        lines.append(f"  {title:<12} {found['recall@10']:9.3f} {found['ndcg@10']:8.3f}")
    return lines


def lists(name: str, workspace: Path) -> list[str]:
    """Lay out the latest items and the lists of two users; of visits, a list for a new one."""
    recommender = Recommender.load(workspace / "bundles" / "current")
    users, catalogue = recommender.bundle.users, recommender.bundle.catalogue
    filtered = {"where": TODAY} if name == "news" else {}
    lines = []
    for row in range(1, len(users.user_ids), max(1, len(users.user_ids) // NUM_LISTS))[:NUM_LISTS]:
        history = users.history(row)[-3:]
        shown = {"k": K, "filter": filtered}
        if name == "sessions":
            clicked = [catalogue.item_ids[int(item)] for item in history]
            who, asks = "A new visit", Request(session=clicked, **shown)
        else:
            who, asks = users.user_ids[row], Request(user_id=users.user_ids[row], **shown)
        reply = recommender.answer(asks)
        texts = [catalogue.display_texts[catalogue.row_of(one.item_id) or 0] for one in reply.items]
        latest = [catalogue.display_texts[int(item)] for item in history]
        lines += ["", who, f"  lately:      {'; '.join(latest)}"]
        lines += [f"  recommended: {texts[0]}", *(f"               {text}" for text in texts[1:])]
    return lines


def page_of(name: str) -> Path:
    """Return an example's page."""
    return ROOT / "docs" / "examples" / f"{name}.md"


def with_block(page: str, language: str, text: str) -> str:
    """Replace a page's one block of a language."""
    fence = re.compile(rf"^```{language}\n.*?^```$", re.MULTILINE | re.DOTALL)
    return fence.sub(lambda _: f"```{language}\n{text.rstrip()}\n```", page, count=1)


def write_page(name: str, output: str) -> None:
    """Put an example's file and output into its page."""
    path = page_of(name)
    toml = (ROOT / "examples" / f"{name}.toml").read_text(encoding="utf-8")
    page = with_block(path.read_text(encoding="utf-8"), "toml", toml)
    path.write_text(with_block(page, "text", output), encoding="utf-8")


def main() -> None:
    """Run one example and print what it says."""
    parser = argparse.ArgumentParser(description="Run an example.")
    parser.add_argument("name", choices=EXAMPLES)
    parser.add_argument("--page", action="store_true", help="Write its page, too.")
    given = parser.parse_args()
    output = run(given.name, Path("runs") / "examples" / given.name)
    sys.stdout.write(output)
    if given.page:
        write_page(given.name, output)


if __name__ == "__main__":
    main()
