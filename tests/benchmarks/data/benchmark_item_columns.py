"""What columns of items and users are worth: release year, genres, age, gender, occupation, brands.

MovieLens-100K: the preset's two-tower with and without the release year beside titles and genres,
and without the users' columns, some seeds each; content similarity with and without the year.
Amazon Beauty: content similarity by MiniLM alone and with the exact attributes (brand, category),
which its two-tower embeds anyway; the copy has no price and no sales rank. The weight of columns
(0.5) was chosen on validation; each look at a test split adds a line to the ledger.

    RECSYS_DATA_MIRROR=/data python -m tests.benchmarks.data.benchmark_item_columns
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from pipelines.config.run import RunConfig
from pipelines.engine.runner import pick_stages, run_stages
from pipelines.inputs.tensors import read_inputs
from pipelines.presets import PRESETS
from pipelines.presets.amazon import MEANING
from pipelines.presets.resolve import with_dataset
from pipelines.stages.evaluate import evaluate_split
from pipelines.stages.list import STAGES
from recsys.content.columns import ColumnEncoder
from recsys.fitting.inputs import ModelInputs
from recsys.models.content_similarity import ContentSimilarity, ContentSimilarityConfig
from recsys.models.two_tower import TwoTower
from recsys.retrieval.sources import ScoredSource
from tests.benchmarks.harness import LEDGER, Row, command_line, write_results

Scores = dict[str, NDArray[np.float64]]
"""N@10 of each user, by split."""
METRIC = "ndcg@10"
PREPARED = ("build_features", "enrich_items", "embed_items")
VARIANTS = ("as the preset", "with the release year", "without users' columns")


def config_of(preset: str, variant: str, seed: int, root: Path) -> RunConfig:
    config = PRESETS[preset]()
    config = replace(config, workspace=root / f"{preset}-{variant.replace(' ', '-')}-{seed}")
    config = replace(config, seed=seed, splits=replace(config.splits, tie_orders=("given",)))
    columns = {"with the release year": ("release_year",), "with attributes": ("categories",)}
    config = replace(config, content=replace(config.content, columns=columns.get(variant, ())))
    if variant == "without users' columns":
        config = replace(config, features=replace(config.features, user_columns=()))
    return with_dataset(config)


def scores_of(source: ScoredSource, inputs: ModelInputs, config: RunConfig) -> Scores:
    """Measure a model on both splits."""
    with torch.no_grad():
        return {
            split: evaluate_split({"it": source}, inputs, split, config)["it"]
            .per_user(METRIC)
            .numpy()
            for split in ("validation", "test")
        }


def two_tower(variant: str, seed: int, root: Path) -> Scores:
    """Train the two-tower of MovieLens-100K."""
    config = config_of("movielens_100k", variant, seed, root)
    run_stages(pick_stages(STAGES, [*PREPARED, "train_two_tower"], None), config)
    inputs = read_inputs(config.workspace / PREPARED[0], config.workspace / PREPARED[2], "given")
    folder = config.workspace / "train_two_tower/given/two_tower"
    note_look("movielens-100k", f"two_tower, {variant}", seed)
    return scores_of(ScoredSource(TwoTower.load(folder, inputs.catalogue).score), inputs, config)


def similarity(preset: str, variant: str, root: Path) -> tuple[Scores, Scores]:
    """Compare content by the text's meaning alone, and with columns."""
    config = config_of(preset, variant, 0, root)
    run_stages(pick_stages(STAGES, list(PREPARED), None), config)
    inputs = read_inputs(config.workspace / PREPARED[0], config.workspace / PREPARED[2], "given")
    made = json.loads((config.workspace / PREPARED[2] / "content.json").read_text())
    width = ColumnEncoder.of(made["columns"], 1.0).dim
    content = inputs.catalogue.content
    found = []
    text = content[:, :MEANING]
    both = torch.cat([text, content[:, -width:]], 1)
    for what, vectors in (("text alone", text), (variant, both)):
        model = ContentSimilarity(ContentSimilarityConfig(), vectors)
        note_look(config.data.dataset or preset, f"content similarity, {what}", 0)
        found.append(scores_of(ScoredSource(model.score), inputs, config))
    return found[0], found[1]


def note_look(data_set: str, model: str, seed: int) -> None:
    entry = {
        "date": datetime.now(UTC).date().isoformat(),
        "data_set": data_set,
        "tie_order": "given",
        "model": model,
        "seed": seed,
        "config": "preset, content.column_weight 0.5",
        "why": "what columns of items and users are worth; settings chosen on validation",
    }
    with LEDGER.open("a") as file:
        file.write(json.dumps(entry) + "\n")


def compared(label: str, base: list[Scores], other: list[Scores]) -> list[Row]:
    """Difference of N@10 by user, means over seeds, with a 95% interval over users."""
    rows = []
    for split in ("validation", "test"):
        before, after = (
            np.mean([one[split] for one in scores], axis=0) for scores in (base, other)
        )
        before, after = before[~np.isnan(before)], after[~np.isnan(after)]
        apart = after - before
        half = 1.96 * apart.std(ddof=1) / np.sqrt(len(apart))
        by_seed = [np.nanmean(b[split] - a[split]) for a, b in zip(base, other, strict=True)]
        spread = ", ".join(f"{one:+.4f}" for one in by_seed) if len(by_seed) > 1 else "one fit"
        rows.append(
            Row(
                name=f"{label}: N@10, {split}",
                value=float(after.mean()),
                peer=f"without {before.mean():.4f}; difference {apart.mean():+.4f} "
                f"+- {half:.4f} (95%, users); by seed {spread}",
                ratio=float(after.mean() / before.mean()),
            )
        )
    return rows


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2, 3])
    parser.add_argument("--workspace", type=Path, default=Path("runs/item-columns"))
    parser.add_argument("--skip-beauty", action="store_true")
    arguments = parser.parse_args()
    root = arguments.workspace
    rows = compared(
        "MovieLens-100K, content similarity, release year",
        *([one] for one in similarity("movielens_100k", "with the release year", root)),
    )
    if not arguments.skip_beauty:
        found = similarity("amazon_beauty", "with attributes", root)
        rows += compared("Beauty, content similarity, attributes", *([one] for one in found))
    plain, year, nobody = (
        [two_tower(variant, seed, root) for seed in arguments.seeds] for variant in VARIANTS
    )
    rows += compared("MovieLens-100K, two-tower, release year", plain, year)
    rows += compared("MovieLens-100K, two-tower, users' age, gender, occupation", nobody, plain)
    write_results("item_columns", rows)


if __name__ == "__main__":
    main()
