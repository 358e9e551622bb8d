"""Count the turns that simulated users need to find a film, by refining and by search alone.

Each user has a hidden film of MovieLens-100K in mind, drawn by its events or from all films, knows
its categories and its year, and is done as soon as a list of ten has it. Both ways begin with the
same words: all its categories and the decade at once, or one more of them each turn. By search
alone a user then asks for the next ten. By refining, a user answers the question of each reply, or
names the category of the list that most of its films have and the hidden one has not, or both.
Without a question the user names a category. Nothing else is known of a user.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np

from recsys.models.text_search.turns import Split
from serving.recommend import Recommender
from serving.refine import refine
from serving.schemas import RefineRequest, Request
from tests.benchmarks.harness import Row, command_line, write_results

ANSWERS, CORRECTIONS, BOTH = "answers", "corrections", "answers and corrections"
MAX_TURNS = 10
"""A user who has not found the film by then gives up, which counts as one turn more."""
NOTES = """Mean of all users. A user of search may leave out what was shown, too, so both ways walk
down the same list if nothing is said or answered. The users were written before the numbers were
seen; how a question is chosen was fitted on other users (seeds 101 and 102)."""


class Users:
    """Films with their categories and years, and who looks for one."""

    def __init__(self, recommender: Recommender) -> None:
        bundle = recommender.bundle
        self.recommender, self.ids = recommender, bundle.catalogue.item_ids
        self.row_of = bundle.catalogue.row_of
        years = bundle.properties.columns["release_year"]
        rows = range(1, bundle.num_item_rows)
        self.years = {row: year for row in rows if (year := years.value_of(row))}
        self.categories = {row: set(bundle.catalogue.categories_of(row)) for row in rows}
        self.rows = [row for row in self.years if self.categories[row]]
        self.counts = bundle.item_counts.numpy()[self.rows]

    def words(self, film: int, rng: np.random.Generator) -> list[str]:
        """What is known of a film, in the order that a user thinks of it."""
        words = [*sorted(self.categories[film]), f"{int(self.years[film]) // 10 * 10}s"]
        rng.shuffle(words)
        return words

    def search(self, film: int, words: list[str], first: int) -> int:
        shown: list[str] = []
        for turn in range(1, MAX_TURNS + 1):
            query = " ".join(words[: first + turn - 1])
            request = Request(surface="search", query=query, exclude=shown, k=10)
            found = [item.item_id for item in self.recommender.answer(request).items]
            if self.ids[film] in found:
                return turn
            shown += found
        return MAX_TURNS + 1

    def refine(self, film: int, words: list[str], first: int, way: str) -> int:
        request, answer = Request(k=10), ""
        for turn in range(1, MAX_TURNS + 1):
            new = words[:first] if turn == 1 else words[first + turn - 2 : first + turn - 1]
            said = ", ".join([f"more {' '.join(new)}"] * bool(new) + [answer] * bool(answer))
            given = RefineRequest(say=said or "anything", request=request)
            made, request, split = refine(self.recommender, given, names_history=True)
            found = [item.item_id for item in made.reply.items]
            if self.ids[film] in found:
                return turn
            answer = self.answer(film, split, found, way)
        return MAX_TURNS + 1

    def answer(self, film: int, split: Split | None, found: list[str], way: str) -> str:
        said = []
        if split is not None and way != CORRECTIONS:
            value = split.answers[0].split(maxsplit=1)[1].removeprefix("year up to ")
            above = self.years[film] > float(value) if value.isdigit() else True
            said.append(split.answers[above and value not in self.categories[film]])
        if way != ANSWERS or split is None:
            rows = [self.row_of(item_id) for item_id in found]
            names = Counter(name for row in rows for name in self.categories[row])
            unlike = [name for name, _ in names.most_common() if name not in self.categories[film]]
            said += [f"no {name}" for name in unlike[:1]]
        return ", ".join(said)


def row_of(name: str, search: np.ndarray, ours: np.ndarray, rng: np.random.Generator) -> Row:
    draws = rng.choice(len(ours), (2_000, len(ours)))
    low, high = np.percentile(search[draws].mean(1) / ours[draws].mean(1), (2.5, 97.5))
    found = [f"{(turns <= MAX_TURNS).mean():.0%}" for turns in (search, ours)]
    value, other = float(ours.mean()), float(search.mean())
    peer = f"search {other:.3g} (finds {found[0]}, ours {found[1]}; 95% {low:.2f}x to {high:.2f}x)"
    return Row(name=name, value=value, peer=peer, ratio=other / value, min_ratio=1 / 0.7)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--bundles", type=Path, default=Path("runs/movielens-100k/bundles"))
    parser.add_argument("--users", type=int, default=500)
    parser.add_argument("--seed", type=int, default=5)
    options = parser.parse_args()
    users, rng = (
        Users(Recommender.load(options.bundles / "current")),
        np.random.default_rng(options.seed),
    )
    rows = []
    for drawn, chances in (("by events", users.counts / users.counts.sum()), ("of all", None)):
        films = rng.choice(users.rows, options.users, p=chances).tolist()
        for told, first in (("all at once", MAX_TURNS), ("a word a turn", 1)):
            known = [(film, users.words(film, rng), first) for film in films]
            search = np.array([users.search(*one) for one in known])
            for way in (ANSWERS, CORRECTIONS, BOTH):
                ours = np.array([users.refine(*one, way) for one in known])
                rows.append(row_of(f"film {drawn}, {told}, {way}: turns", search, ours, rng))
    write_results("refine", rows, notes=NOTES)


if __name__ == "__main__":
    main()
