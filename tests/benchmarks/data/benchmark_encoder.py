"""Time MiniLM on item texts: as this CPU runs it, in float32, and by sentence-transformers.

    python -m tests.benchmarks.data.benchmark_encoder --items amazon-beauty

Texts are the first of the set's catalogue, in turn by each encoder; the best of three turns counts.
"""

from __future__ import annotations

import time
from unittest.mock import patch

import numpy as np
import polars as pl
import torch

from pipelines.config.content import ContentConfig
from pipelines.datasets.fetch import fetch
from pipelines.datasets.registry import find_dataset
from pipelines.inputs.content_models import describe_item
from recsys.content import minilm
from recsys.content.encoder import Encoder, SentenceTransformerEncoder
from tests.benchmarks.harness import Row, command_line, write_results

THEIRS, EXACT = "sentence-transformers", "float32"


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--items", default="amazon-beauty", help="data set of the registry")
    parser.add_argument("--texts", type=int, default=2_000)
    options = parser.parse_args()
    table = fetch(find_dataset(options.items)).table("items")
    assert table is not None
    items = pl.read_parquet(table).head(options.texts)
    texts = [describe_item(item, ContentConfig()) for item in items.iter_rows(named=True)]
    ours = minilm.MiniLMEncoder(device="cpu")
    with patch.object(minilm, "multiplies_bfloat16", lambda _: False):
        exact = minilm.MiniLMEncoder(device="cpu")
    theirs = SentenceTransformerEncoder(minilm.packaged_minilm(), name=THEIRS, device="cpu")
    as_run = "bfloat16" if minilm.multiplies_bfloat16("cpu") else EXACT
    encoders: dict[str, Encoder] = {as_run: ours, EXACT: exact, THEIRS: theirs}
    seconds: dict[str, list[float]] = {name: [] for name in encoders}
    vectors = {}
    for _ in range(3):
        for name, encoder in encoders.items():
            began = time.perf_counter()
            vectors[name] = encoder.encode(texts)
            seconds[name].append(time.perf_counter() - began)
    rate = {name: len(texts) / min(took) for name, took in seconds.items()}
    rows = [
        Row(
            name=f"MiniLM, {name}",
            value=rate[name],
            unit="texts/s",
            peer=f"{THEIRS} {rate[THEIRS]:.0f}",
            ratio=rate[name] / rate[THEIRS],
        )
        for name in encoders
        if name != THEIRS
    ]
    cosines = (vectors[as_run] * vectors[EXACT]).sum(1)
    rows.append(Row(name="least cosine of a text to itself in float32", value=float(cosines.min())))
    characters = np.mean([len(text) for text in texts])
    notes = (
        f"{len(texts):,} texts of {options.items}, {characters:.0f} characters in the mean, "
        f"{torch.get_num_threads()} threads."
    )
    write_results("encoder", rows, notes=notes)


if __name__ == "__main__":
    main()
