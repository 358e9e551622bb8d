"""Read 120 wishes in other words by rules alone, and by rules and a language model.

The wishes (wishes.csv) are in English, German and French, and say in other words what they want of
the categories of MovieLens-100K. A reading is right if it has all of that, each with its direction,
and nothing but what is allowed besides. "Never" counts as "less", words of titles as wrong.
"""

from __future__ import annotations

import csv
import json
import time
from contextlib import suppress
from pathlib import Path

import torch

from recsys.content.config import EndpointConfig
from recsys.content.endpoint import Endpoint
from recsys.content.name_choice import INSTRUCTIONS, NameChoice, read_choice, schema_of
from recsys.content.prompt import Completion, Prompt
from recsys.models.text_search.wishes import find_values
from serving.online.topics import said_topics
from serving.recommend import Recommender
from serving.web.wish_reading import Reading
from tests.benchmarks.harness import Row, command_line, write_results

SIGNS = {"more": "+", "less": "-", "never": "-"}
NOTES = """The wishes and their meanings were written before any was read. "Known" has the meaning
of each wish as the model's answer. "Lost" are read right by rules alone and not by both. Seconds
are of the processor."""


class Log(dict[int, str]):
    """What a model answers."""

    def charge(self, index: int) -> None:
        pass

    def record(self, index: int, answer: Completion | Exception) -> None:
        self[index] = answer.text if isinstance(answer, Completion) else ""


def known(wanted: list[str]) -> str:
    ways = {way: [one[1:] for one in wanted if one[0] == SIGNS[way]] for way in ("more", "less")}
    return json.dumps(ways | {"days": None})


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--bundles", type=Path, default=Path("runs/movielens-100k/bundles"))
    parser.add_argument("--endpoint", help="OpenAI-compatible server, as base_url of [wishes]")
    parser.add_argument("--model", default="", help="its name for the model")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with (Path(__file__).parent / "wishes.csv").open() as file:
        wishes = list(csv.DictReader(file))
    items = Recommender.load(options.bundles / "current").steering.items
    texts, names = [one["wish"] for one in wishes], sorted(items.names("any"))

    def right(place: int, answer: str | None) -> bool:
        text, choice, fault = texts[place], NameChoice(), "no answer"
        rules = said_topics(text, 0.0)
        read = [o.words for o in rules if items.mask(o.words).any() and not items.ignored(o.words)]
        if answer is not None and not (rules and len(read) == len(rules)):
            with suppress(ValueError):
                choice = read_choice(answer, text, names)
                fault = None if choice.more or choice.less else fault
        found = set()
        for topic in Reading(text, read, choice, fault).join(rules, 0.0):
            keys, others = find_values(topic.words, items._values)
            if others and items._with_words(topic.words).any():
                found.add("words of titles")
            meant = keys + list(filter(None, map(items._meant, others)))
            found |= {SIGNS[topic.direction] + items._values[key][0][1] for key in meant}
        wanted, allowed = (set(wishes[place][key].split()) for key in ("wanted", "allowed"))
        return wanted <= found <= wanted | allowed

    rows, alone = [], [right(place, None) for place in range(len(texts))]

    def add(name: str, answers: list[str | None], seconds: float) -> None:
        found = [right(place, answer) for place, answer in enumerate(answers)]
        lost = sum(one and not other for one, other in zip(alone, found, strict=True))
        parts = [sum(found[a:b]) / (b - a) for a, b in ((0, 70), (70, 95), (95, 120))]
        peer = "English, German, French " + ", ".join(f"{one:.2f}" for one in parts)
        peer += f"; lost {lost}; {seconds / len(texts):.1f} s a wish"
        ratio = sum(found) / sum(alone)
        rows.append(Row(name=name, value=sum(found) / len(found), peer=peer, ratio=ratio))
        print(rows[-1], flush=True)

    add("rules alone: read right", [None] * len(texts), 0.0)
    add("rules and known meanings: read right", [known(o["wanted"].split()) for o in wishes], 0.0)
    if options.endpoint:
        model = Endpoint(EndpointConfig(base_url=options.endpoint, model=options.model))
        log, begin = Log(), time.process_time()
        prompts = [Prompt(INSTRUCTIONS + json.dumps(names), text) for text in texts]
        model.complete_json(prompts, schema_of(names), max_tokens=45, log=log)
        answers = [log[place] for place in range(len(texts))]
        add(f"rules and {model.name}: read right", answers, time.process_time() - begin)
    write_results("wish_reading", rows, notes=NOTES)


if __name__ == "__main__":
    main()
