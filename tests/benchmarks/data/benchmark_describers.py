"""Let language models choose the department of 200 products, labelled by the shop.

Products are drawn from Amazon Beauty, with the words of their titles alone. Peers: the most
frequent department, and the one whose name is nearest to the words by MiniLM.
"""

from __future__ import annotations

import html
import json
import time
from collections import Counter
from pathlib import Path

import numpy as np
import polars as pl
import torch

from recsys.content.attribute_schema import build_extraction
from recsys.content.config import AttributeConfig
from recsys.content.language_model import LocalLanguageModel, packaged_smollm2
from recsys.content.minilm import MiniLMEncoder
from recsys.content.prompt import Completion
from tests.benchmarks.harness import Row, command_line, write_results

DEPARTMENTS = (
    "Skin Care",
    "Hair Care",
    "Makeup",
    "Tools & Accessories",
    "Bath & Body",
    "Fragrance",
)
NUM_ITEMS, BATCH = 200, 20
NOTES = """Right: share of all 200, an answer "unknown" is wrong. Seconds are of the processor, one
thread, while other work shared the two cores. Models answer as enrichment lets them: each writes
one of the six names or "unknown", whichever is likeliest."""


def labelled(folder: Path) -> list[tuple[str, str]]:
    """Draw products: words of the title, and the department."""
    found = []
    items = pl.read_parquet(folder / "items.parquet", columns=["tags", "attributes"])
    for words, attributes in items.iter_rows():
        own = [name for name in map(html.unescape, attributes or ()) if name in DEPARTMENTS]
        if words and len(own) == 1:
            found.append((words, own[0]))
    chosen = np.random.default_rng(0).choice(len(found), NUM_ITEMS, replace=False)
    return [found[place] for place in chosen]


class Log:
    """Keeps what a model answers."""

    def __init__(self) -> None:
        self.answers: dict[int, Completion | Exception] = {}

    def charge(self, index: int) -> None:
        pass

    def record(self, index: int, answer: Completion | Exception) -> None:
        self.answers[index] = answer


def rows_of(name: str, path: Path, items: list[tuple[str, str]], common: float) -> list[Row]:
    """Ask one model."""
    department = AttributeConfig(
        name="department",
        type="choice",
        description="The department of a beauty shop that sells it.",
        values=DEPARTMENTS,
    )
    extraction, log = build_extraction([department]), Log()
    model = LocalLanguageModel(path, batch_size=BATCH, device="cpu")
    model.complete_json(
        [extraction.prompt("lipstick")], extraction.schema, max_tokens=16, log=Log()
    )
    begin = time.process_time()
    prompts = [extraction.prompt(words) for words, _ in items]
    model.complete_json(prompts, extraction.schema, max_tokens=16, log=log)
    seconds = time.process_time() - begin
    answers = [log.answers[place] for place in range(len(items))]
    said = [json.loads(one.text)["department"] for one in answers if isinstance(one, Completion)]
    right = np.mean([one == label for one, (_, label) in zip(said, items, strict=True)])
    tokens = sum(one.tokens.total for one in answers)
    return [
        Row(
            name=f"{name}: right",
            value=float(right),
            peer=f"most frequent department {common:.3f}; {Counter(map(str, said)).most_common(3)}",
            ratio=float(right / common),
        ),
        Row(
            name=f"{name}: 1,000 items",
            value=1_000 * seconds / len(items),
            unit="s",
            peer=f"{tokens / len(items):.0f} tokens an item",
        ),
    ]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--beauty", type=Path, required=True, help="folder of Amazon Beauty")
    parser.add_argument("--model", type=Path, action="append", default=[], help="GGUF file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    items = labelled(options.beauty)
    labels = [label for _, label in items]
    common = Counter(labels).most_common(1)[0][1] / len(labels)
    encoder = MiniLMEncoder()
    near = encoder.encode([words for words, _ in items]) @ encoder.encode(list(DEPARTMENTS)).T
    right = np.mean([DEPARTMENTS[n] == one for n, one in zip(near.argmax(1), labels, strict=True)])
    peer = {"peer": f"most frequent department {common:.3f}", "ratio": float(right / common)}
    rows = [Row(name="MiniLM, nearest name: right", value=float(right), **peer)]
    for path in (packaged_smollm2(), *options.model):
        rows += rows_of(path.stem, path, items, common)
    write_results("describers", rows, notes=NOTES)


if __name__ == "__main__":
    main()
