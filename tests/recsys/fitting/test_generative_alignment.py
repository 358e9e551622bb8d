"""The second phase of the generative model on a small world, and the sampler that it draws with."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recsys.data.batch import Jagged, JaggedBatch
from recsys.fitting.alignment import METRIC, WORTH, Aligner, contexts_of, value_metrics
from recsys.fitting.generative import Guidance, fit_generative
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.queries import EvaluationQueries, RetrievalSettings
from recsys.fitting.training import Refit, TrainingRun
from recsys.models.generative.config import GenerativeConfig, GenerativeInputs
from recsys.models.generative.model import GenerativeModel
from recsys.models.item_tower import FeatureSizes, ItemCatalogue
from recsys.retrieval.sampling import sample_items
from recsys.retrieval.sources import generated_source
from recsys.semantic_ids.codes import ItemCodes
from recsys.semantic_ids.trie import Trie
from recsys.training.alignment import AlignmentConfig, RewardConfig, value_of
from recsys.training.optim import ScheduleConfig
from recsys.training.passes import TrainingConfig
from tests.recsys.testing.synthetic import markov_world, sequences

SIZES = (4, 4, 4)
NUM_ITEM_ROWS = 31
SMALL = GenerativeConfig(
    embedding_dim=16,
    hidden_dim=32,
    max_length=6,
    num_layers=1,
    items="codes",
    dense_weight=0.0,
    dropout=0.0,
    backend="torch",
)
TRAINING = TrainingConfig(
    batch_size=16, max_epochs=2.0, schedule=ScheduleConfig(learning_rate=1e-2)
)
ALIGNMENT = AlignmentConfig(
    method="grpo", batch_size=32, num_steps=30, evaluations=2, learning_rate=3e-3
)


def item_codes() -> ItemCodes:
    keys = torch.randperm(64, generator=torch.Generator().manual_seed(3))[:NUM_ITEM_ROWS]
    codes = torch.stack([keys // 16, keys // 4 % 4, keys % 4], dim=1)
    codes[[0, 7]] = -1
    return ItemCodes(codes=codes, level_sizes=SIZES, version="ids")


def untrained(config: GenerativeConfig = SMALL) -> GenerativeModel:
    torch.manual_seed(5)
    ids = item_codes()
    inputs = GenerativeInputs(
        num_item_rows=NUM_ITEM_ROWS, level_sizes=SIZES, semantic_ids=ids.version
    )
    model = GenerativeModel(config, inputs, ids.codes, ItemCatalogue.empty(NUM_ITEM_ROWS))
    with torch.no_grad():
        for head in model.heads:
            head.weight.mul_(4)
    return model.eval()


def queries_of(*lists: list[int]) -> JaggedBatch:
    return JaggedBatch({"history": Jagged.from_lists(lists)})


def item_log_probabilities(model: GenerativeModel, queries: JaggedBatch) -> tuple[Tensor, Tensor]:
    """Score every item that has an ID: rows [N], [B, N]."""
    rows = (model.codes[:, 0] >= 0).nonzero()[:, 0]
    codes = model.codes[rows].expand(queries["history"].batch_size, -1, -1)
    levels = model.code_log_probabilities(queries, codes)
    parts = [level.gather(2, codes[..., at, None])[..., 0] for at, level in enumerate(levels)]
    return rows, torch.stack(parts).sum(0)


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        replace(SMALL, items="codes_tower", num_layers=2, carries_place=True),
        replace(SMALL, softmax_over="level"),
    ],
)
def test_draws_are_items_in_proportion_to_the_constrained_probabilities(
    config: GenerativeConfig,
) -> None:
    model, queries = untrained(config), queries_of([3, 8, 3, 21], [])
    rows, expected = item_log_probabilities(model, queries)
    torch.testing.assert_close(expected.exp().sum(1), torch.ones(2))
    num_draws = 4000
    drawn = sample_items(
        model.decode_step,
        model.context(queries),
        Trie.of_items(item_codes()),
        num_draws,
        torch.Generator().manual_seed(0),
    )
    for request in range(2):
        place = torch.searchsorted(rows, drawn.item_rows[request])
        assert torch.equal(rows[place], drawn.item_rows[request])
        torch.testing.assert_close(
            drawn.log_probabilities[request], expected[request, place], rtol=1e-4, atol=1e-4
        )
        frequent = num_draws * expected[request].exp().detach()
        counts = torch.bincount(place, minlength=len(rows))
        # Items expected less than five times are one class.
        rare = frequent < 5
        classes = [frequent[~rare], frequent[rare].sum()[None]]
        seen = torch.cat([counts[~rare], counts[rare].sum()[None]])
        chi_squared = ((seen - torch.cat(classes)) ** 2 / torch.cat(classes).clamp(min=1)).sum()
        assert chi_squared < 60  # 28 degrees of freedom or fewer; above in 1 of 2,500 draws


def test_a_trie_without_items_is_refused() -> None:
    model = untrained()
    empty = Trie.build(torch.zeros(0, 3, dtype=torch.int64), SIZES)
    with pytest.raises(ValueError, match="a trie of 0 items"):
        sample_items(model.decode_step, model.context(queries_of([1])), empty, 4)


def test_contexts_end_before_their_label() -> None:
    history = Jagged.from_lists([[1, 2], [3, 4, 5, 6, 7]])
    torch.manual_seed(0)
    labels = set()
    for _ in range(60):
        contexts = contexts_of(history)
        read = contexts.queries["history"]
        first, second = (part.tolist() for part in read.values.split(read.lengths().tolist()))
        assert first == [1]
        assert contexts.labels[0] == 2
        assert second == [3, 4, 5, 6][: len(second)]
        assert contexts.labels[1] == 3 + len(second)
        labels.add(int(contexts.labels[1]))
    assert labels == {4, 5, 6, 7}


@pytest.fixture(scope="module")
def inputs() -> ModelInputs:
    world = markov_world(num_users=60, num_items=NUM_ITEM_ROWS - 1, events_per_user=10)
    return ModelInputs(
        sequences=sequences(world),
        catalogue=ItemCatalogue.empty(NUM_ITEM_ROWS),
        sizes=FeatureSizes(num_item_rows=NUM_ITEM_ROWS),
    )


def fitted(
    inputs: ModelInputs, alignment: AlignmentConfig | None, values: Tensor | None = None
) -> tuple[GenerativeModel, int]:
    judge, run = judge_of(inputs), TrainingRun(seed=0)
    guidance = Guidance(alignment=alignment, item_values=values)
    model, result, _ = fit_generative(
        inputs, item_codes(), SMALL, TRAINING, run, judge, guidance=guidance
    )
    return model, result.aligned_steps


def judge_of(inputs: ModelInputs) -> EvaluationQueries:
    settings = RetrievalSettings(exclude_history=False, beam_width=30)
    return EvaluationQueries.of(inputs, "validation", settings)


def expected_reward(model: GenerativeModel, inputs: ModelInputs) -> float:
    """Average the probability of the item that comes next, over the second half of histories."""
    history = [list(map(int, rows)) for rows in users(inputs)]
    queries = queries_of(*(rows[:5] for rows in history))
    labels = torch.tensor([rows[5] for rows in history])
    rows, found = item_log_probabilities(model.eval(), queries)
    known = torch.isin(labels, rows)
    place = torch.searchsorted(rows, labels).clamp(max=len(rows) - 1)
    return float(found.detach().exp().gather(1, place[:, None])[known].mean())


def users(inputs: ModelInputs) -> list[Tensor]:
    offsets = torch.as_tensor(inputs.sequences.offsets).tolist()
    rows = torch.as_tensor(inputs.sequences.item_rows)
    return [rows[begin : begin + 10] for begin in offsets[:-1]]


@pytest.mark.parametrize("method", ["grpo", "dpo"])
def test_rewards_grow_on_a_planted_world_the_same_to_the_byte(
    inputs: ModelInputs, method: str
) -> None:
    plain, none = fitted(inputs, None)
    alignment = replace(ALIGNMENT, method=method)
    (aligned, steps), (twin, _) = fitted(inputs, alignment), fitted(inputs, alignment)
    assert none == 0
    assert steps > 0
    assert expected_reward(aligned, inputs) > 1.1 * expected_reward(plain, inputs)
    for name, value in aligned.state_dict().items():
        assert torch.equal(value, twin.state_dict()[name]), name


def test_where_validation_gains_nothing_the_weights_are_those_before(inputs: ModelInputs) -> None:
    plain, _ = fitted(inputs, None)
    # Raising what is new alone leads away from what comes next.
    away = replace(ALIGNMENT, rewards=RewardConfig(hit=0.0, novelty=1.0), learning_rate=3e-2)
    kept, steps = fitted(inputs, replace(away, kl_weight=0.0))
    assert steps == 0
    for name, value in plain.state_dict().items():
        assert torch.equal(value, kept.state_dict()[name]), name


def test_lists_are_worth_more_at_a_bounded_cost_with_a_reward_of_values(
    inputs: ModelInputs,
) -> None:
    # Values have nothing to do with what comes next; a third is not known.
    values = torch.rand(NUM_ITEM_ROWS, generator=torch.Generator().manual_seed(1))
    values[::3] = torch.nan
    rewards = RewardConfig(hit=1.0, value=0.2)
    found = {}
    for cost in (0.05, 0.4):
        alignment = replace(ALIGNMENT, rewards=rewards, value_cost=cost, evaluations=6)
        for name, settings in (("before", None), ("after", alignment)):
            model, steps = fitted(inputs, settings, values)
            source = generated_source(model.eval(), item_codes(), 30)
            found[name] = value_metrics(
                source, judge_of(inputs), value_of(values), torch.device("cpu")
            )
        assert found["after"][METRIC] >= (1 - cost) * found["before"][METRIC]
        assert found["after"][WORTH] >= found["before"][WORTH]
    assert steps > 0
    assert found["after"][WORTH] > found["before"][WORTH] + 0.1


def test_a_reward_of_values_without_values_is_refused(inputs: ModelInputs) -> None:
    with pytest.raises(ValueError, match="no item values are given"):
        fitted(inputs, replace(ALIGNMENT, rewards=RewardConfig(value=1.0)))


def test_a_refit_takes_the_steps_that_validation_kept(inputs: ModelInputs) -> None:
    run, guidance = TrainingRun(seed=0), Guidance(alignment=ALIGNMENT)
    moved = []
    for steps in (0, 5):
        refit = Refit(best_step=4, num_examples=60, aligned_steps=steps)
        model, result, _ = fit_generative(
            inputs, item_codes(), SMALL, TRAINING, run, refit, split="all", guidance=guidance
        )
        assert result.aligned_steps == steps
        moved.append(model.heads[0].weight.detach().clone())
    assert not torch.equal(*moved)


def test_labels_without_an_id_move_nothing() -> None:
    model, counts = untrained(), torch.ones(NUM_ITEM_ROWS)
    for method in ("grpo", "dpo"):
        config = replace(ALIGNMENT, method=method, kl_weight=0.0)
        aligner = Aligner(model, item_codes(), counts, config)
        contexts = contexts_of(Jagged.from_lists([[3, 7], [4, 7]]))
        loss = aligner.loss(contexts)
        gradient = torch.autograd.grad(loss, model.heads[0].weight)[0]
        assert torch.count_nonzero(gradient) == 0
