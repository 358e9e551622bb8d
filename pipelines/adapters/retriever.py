"""Adapt a released retriever to a domain: train, judge, train again on everything.

As a release does: the judged adapter is trained on train, over the model of train, with its step
selected on half of the domain's validation users; the other half judges it. The served adapter is
trained for as many epochs on everything, over the released model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

import recsys.models.names as names
from pipelines.adapters.gate import refuse_few
from pipelines.adapters.task import DomainQueries, EmptyDomainError, Judged, Task
from recsys.data.batch import JaggedBatch
from recsys.data.windows import (
    BatchOrder,
    domain_positions,
    domain_window_batch,
    domain_windows,
    training_windows,
)
from recsys.evaluation.ranking import RankingConfig, RankingResult, evaluate_ranking
from recsys.fitting.queries import GIVEN
from recsys.layers.lora.linear import LoraAdapter
from recsys.models.adapted import (
    CONTENT_LAYER,
    ITEM_TABLE,
    AdaptedRetriever,
    adapted_layers,
    centre_items,
)
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower

Model = TwoTower | SequenceModel
Split = Literal["train", "all"]
MODELS: Mapping[str, type[TwoTower] | type[SequenceModel]] = {
    names.TWO_TOWER.name: TwoTower,
    names.SEQUENCE.name: SequenceModel,
}
KS = (10,)


def train_and_rank(task: Task) -> tuple[Judged, int]:
    """Train an adapter on train, and rank held-out queries with and without it.

    Returns:
        The rankings, and the step that was best on the other half of the queries.
    """
    config = task.config.adapter
    model = load_base(task, task.config.workspace / f"train_{task.base}" / GIVEN / task.base)
    selecting, judging = task.queries(0), task.queries(1)
    refuse_few(task.config, task.name, min(selecting.num_queries, judging.num_queries))
    base = measure(task, model.score, judging)
    base_within = measure(task, model.score, judging, within=True)
    adapter = new_adapter(task, model)
    loss_at, num_examples = losses(task, model, "train")

    def evaluate(_: nn.Module) -> Mapping[str, float]:
        # Over the domain's items alone: to list no others needs no adapter.
        return measure(task, model.score, selecting, within=True).metrics

    steps = replace(config.for_examples(num_examples), metric=config.metric)
    best_step = task.fit(adapter, loss_at, steps, evaluate).best_step
    adapter.detach()
    retriever = AdaptedRetriever(model, {task.name: adapter})

    def score(queries: JaggedBatch) -> Tensor:
        return retriever.score(queries, task.name)

    adapted = measure(task, score, judging)
    adapted_within = measure(task, score, judging, within=True)
    return Judged(judging, base, adapted, base_within, adapted_within), best_step


def train_on_everything(task: Task, released: Path, best_step: int) -> tuple[LoraAdapter, int, int]:
    """Train over the released model for as many epochs as were best; return steps and labels."""
    config, model = task.config.adapter, load_base(task, released)
    loss_at, num_now = losses(task, model, "all")
    _, num_before = losses(task, model, "train")
    adapter = new_adapter(task, model)
    growth = num_now / num_before
    whole = config.for_examples(num_before).num_steps
    num_steps = max(1, round(best_step * growth))
    steps = config.for_steps(num_steps, num_steps, max(1, round(whole * growth)))
    task.fit(adapter, loss_at, steps, None)
    labels = domain_positions(task.inputs.sequences, "all", task.own_items)
    return adapter, num_steps, len(labels)


def max_history(task: Task) -> int:
    """Return the number of events of a history that the model reads."""
    is_sequence = task.base == names.SEQUENCE.name
    config = task.config
    return config.sequence.max_length if is_sequence else config.two_tower.max_history


def load_base(task: Task, directory: Path) -> Model:
    """Read a model over the workspace's catalogue."""
    model = MODELS[task.base].load(directory, task.inputs.catalogue)
    if model.inputs.num_item_rows != task.inputs.sizes.num_item_rows:
        raise ValueError(
            f"{directory} knows {model.inputs.num_item_rows} item rows, the workspace has "
            f"{task.inputs.sizes.num_item_rows}; run the pipeline again to release a base "
            "of this data"
        )
    return model.to(task.device)


def new_adapter(task: Task, model: Model) -> LoraAdapter:
    """Make an adapter by the run's seed, without effect unless the base never met the domain."""
    torch.manual_seed(task.config.seed)
    settings, rows = task.config.adapter, task.item_rows
    config = settings.lora(adapted_layers(model))
    adapter = LoraAdapter(model, config, rows={ITEM_TABLE: rows})
    met = model.item_tower.item_counts[rows.to(task.device)] > 0
    if CONTENT_LAYER in adapter.layers and 2 * int(met.sum()) < len(met):
        centre_items(model, adapter, rows)
    return adapter.attach()


def measure(
    task: Task,
    score: Callable[[JaggedBatch], Tensor],
    queries: DomainQueries,
    *,
    within: bool = False,
) -> RankingResult:
    """Rank the catalogue for held-out queries."""
    within = within or task.config.adapter.softmax_over == "domain"
    held_out, elsewhere = queries.held_out, ~torch.from_numpy(task.own_items).to(task.device)

    def ranked(batch: JaggedBatch) -> Tensor:
        scores = score(batch.to(task.device))
        if within:
            scores[:, elsewhere] = -torch.inf
        return scores

    return evaluate_ranking(
        ranked,
        queries.batches(task.inputs, task.config, max_history(task)),
        held_out.targets,
        RankingConfig(ks=KS),
        exclude=held_out.seen if task.config.evaluation.exclude_history else None,
    )


def losses(task: Task, model: Model, split: Split) -> tuple[Callable[[int], Tensor], int]:
    """Return the loss of each step on a domain's labels of a split, and the number of examples."""
    own, sequences = task.own_items, task.inputs.sequences
    size, seed, device = task.config.adapter.batch_size, task.config.seed, task.device
    if isinstance(model, TwoTower):
        positions = domain_positions(sequences, split, own)
        num_examples = len(positions)
    else:
        windows = training_windows(sequences, split, model.config.max_length)
        windows = domain_windows(sequences, windows, own)
        num_examples = len(windows)
    if num_examples == 0:
        raise EmptyDomainError(
            f"domain {task.name!r} has no event to learn from in {split!r}; "
            "users need an event before it"
        )
    order = BatchOrder(num_examples, min(size, num_examples), seed)
    by_domain = task.config.adapter.softmax_over == "domain"
    softmax_over = task.item_rows.to(device) if by_domain else None

    def loss_at(step: int) -> Tensor:
        chosen = order.indices(step)
        if isinstance(model, TwoTower):
            queries = task.inputs.queries(positions[chosen], max_history=max_history(task))
            labels = sequences.labels(positions[chosen])
            return model.loss(queries.to(device), labels.to(device))
        starts, ends = windows.starts[chosen], windows.ends[chosen]
        batch = domain_window_batch(sequences, starts, ends, own)
        return model.loss(batch.to(device), softmax_over)

    return loss_at, num_examples
