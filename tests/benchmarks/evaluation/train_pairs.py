"""Train a sequence model several times, and table where the trainings rank the same test items.

Six seeds make the equal pairs; two of half as many passes are the weaker systems. The served list
is a learned blend of that model, item-to-item, EASE and popularity, whose weights are learned anew
on the validation lists of each training. Writes ``gate_pairs.json`` beside this script.

    M=tests.benchmarks.evaluation.train_pairs
    python -m $M runs/beauty --name "Amazon Beauty" --passes 6.64
    python -m $M runs/films --name MovieLens-1M --passes 40 --seeds 4

WORKSPACE is a run's (leave-one-out), of which only the features and the content are read. On an
H100 a training of Beauty takes 14 s, one of MovieLens-1M 50 s.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from recsys.data.batch import Jagged
from recsys.data.dataset import Sequences
from recsys.evaluation.ranking import list_ranks
from recsys.fitting.baselines import fit_item_to_item, fit_popularity
from recsys.fitting.blend import ProfileBlend, SourceLists, learned_blend
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.item_weights import fit_ease
from recsys.fitting.queries import EvaluationQueries, Ranked, RetrievalSettings, rank_queries
from recsys.fitting.sequence import fit_sequence
from recsys.fitting.training import TrainingRun, device_named
from recsys.models.item_to_item import ItemToItemConfig
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.models.item_weights.ease import EaseWeightsConfig
from recsys.models.names import source_name
from recsys.models.popularity import PopularityConfig
from recsys.models.sequence.config import SequenceConfig
from recsys.retrieval.blend.config import BlendConfig
from recsys.retrieval.sources import ScoredSource
from recsys.training.passes import TrainingConfig
from tests.benchmarks.evaluation.rank_pairs import Rows, rank_table, write_pairs
from tests.benchmarks.harness import command_line

WEAK_SEED = 100
LIST_LENGTH = 200
SYSTEMS = {"served list": "blend", "sequence model alone": "sequence"}


def read_inputs(workspace: Path) -> ModelInputs:
    """Read arrays only, so that a machine without Polars can run this."""
    features, content = workspace / "build_features", workspace / "embed_items" / "content.npy"
    described = json.loads((features / "features.json").read_text())
    num_rows = described["num_item_rows"]
    vectors = np.load(content) if content.exists() else np.empty((num_rows, 0), np.float32)
    categories = [
        torch.from_numpy(np.load(features / "item_categories" / f"{part}.npy"))
        for part in ("values", "offsets")
    ]
    sizes = FeatureSizes(
        num_item_rows=num_rows,
        content_dim=vectors.shape[1],
        num_categories=described["num_categories"],
        user_features={},
        context_features={},
    )
    return ModelInputs(
        sequences=Sequences.load(features / "sequences" / "given"),
        catalogue=ItemCatalogue(torch.from_numpy(vectors), Jagged(*categories)),
        sizes=sizes,
    )


class Trainings:
    """Trains and ranks on one data set."""

    def __init__(self, inputs: ModelInputs, device: torch.device) -> None:
        self.inputs, self.device, settings = inputs, device, RetrievalSettings()
        validation = EvaluationQueries.of(inputs, "validation", settings)
        self.stop_by, self.learned_on = validation.sample(3_000, 1), validation.sample(4_000, 0)
        self.test = EvaluationQueries.of(inputs, "test", settings)
        ease = EaseWeightsConfig(l2=(100.0,), history_power=(0.6,))
        popularity = fit_popularity(inputs, PopularityConfig(), "train")
        self.counted = {
            "popularity": ScoredSource(popularity.score, needs_history=False),
            "item_to_item": ScoredSource(
                fit_item_to_item(inputs, ItemToItemConfig(), "train").score
            ),
            "ease": ScoredSource(fit_ease(inputs, ease, "train", None).score),
        }
        self._counted_lists: dict[int, dict[str, Ranked]] = {}

    def ranks(self, seed: int, passes: float) -> dict[str, Rows]:
        """Train once; ranks of the test items by the model and by the blend, [U]."""
        has_times = self.inputs.sequences.times is not None
        config = SequenceConfig(
            embedding_dim=128,
            num_blocks=1,
            hidden_dim=256,
            max_length=50,
            num_neighbours=20,
            calendar_days=140.0 if has_times else 0.0,
        )
        training = replace(
            TrainingConfig(), batch_size=256, max_epochs=passes, epochs_per_evaluation=passes / 4
        )
        schedule = replace(training.schedule, learning_rate=0.002, decay="linear")
        training = replace(training, schedule=schedule)
        run = TrainingRun(seed=seed, device=self.device)
        model = fit_sequence(self.inputs, config, training, run, self.stop_by).model
        source = ScoredSource(model.score)
        alone = rank_queries(source, self.test, self.device)
        examples = self.lists(self.learned_on, rank_queries(source, self.learned_on, self.device))
        weights = learned_blend(examples, BlendConfig().learned())
        blend = ProfileBlend.unlearned(weights).merged(self.lists(self.test, alone), LIST_LENGTH)
        merged = list_ranks(blend.item_rows, self.test.targets()).values
        return {"sequence": alone.ranks.numpy(), "blend": merged.numpy()}

    def lists(self, queries: EvaluationQueries, own: Ranked) -> SourceLists:
        """Put a training's lists beside those of the models that are the same in all."""
        if id(queries) not in self._counted_lists:
            self._counted_lists[id(queries)] = {
                name: rank_queries(one, queries) for name, one in self.counted.items()
            }
        found = self._counted_lists[id(queries)]
        lists = {source_name(name): one.lists for name, one in {**found, "sequence": own}.items()}
        return SourceLists.of_queries(lists, queries, self.inputs.item_counts("train"), 0)


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("--name", required=True, help="of the data set")
    parser.add_argument("--passes", type=float, required=True, help="of a whole training")
    parser.add_argument("--seeds", type=int, default=6)
    parser.add_argument("--device", default="auto")
    arguments = parser.parse_args()
    trainings = Trainings(read_inputs(arguments.workspace), device_named(arguments.device))
    whole = [trainings.ranks(seed, arguments.passes) for seed in range(arguments.seeds)]
    weak = [trainings.ranks(WEAK_SEED + seed, arguments.passes / 2) for seed in range(2)]
    write_pairs(
        {
            "name": f"{arguments.name}, {system}",
            "num_users": len(trainings.test),
            "num_seeds": len(whole),
            "num_weak": len(weak),
            "equal": rank_table(combinations([one[row] for one in whole], 2)).reshape(-1).tolist(),
            "unequal": rank_table((less[row], one[row]) for less in weak for one in whole)
            .reshape(-1)
            .tolist(),
        }
        for system, row in SYSTEMS.items()
    )


if __name__ == "__main__":
    main()
