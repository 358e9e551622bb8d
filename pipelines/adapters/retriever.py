"""Adapt a released model to one domain: train, judge, train again on everything, register.

As a release does: the adapter that is measured is trained on train, over the model of train, and
its best step is picked on half of the domain's validation users; the harm gate judges it on the
other half. What is served is trained for as many passes on everything, over the released model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from pipelines.adapters.gate import harm_verdicts, metrics_of
from pipelines.adapters.inputs import DomainQueries, Domains, inputs_there, load_inputs
from pipelines.adapters.outcome import Adapted, refuse_harm
from pipelines.adapters.ranker import adapt_ranker_to
from pipelines.config.run import RunConfig
from pipelines.engine.errors import UnstableTrainingError
from pipelines.engine.workspace import Workspace, bundles_dir
from pipelines.training.run import ProgressBar, training_device
from recsys.data.batch import JaggedBatch
from recsys.data.domains import domain_positions, domain_window_batch, domain_windows
from recsys.data.order import BatchOrder
from recsys.data.windows import training_windows
from recsys.evaluation.ranking import RankingConfig, RankingResult, evaluate_ranking
from recsys.fitting.inputs import ModelInputs
from recsys.layers.lora.linear import LoraAdapter
from recsys.models.adapted.model import (
    CONTENT_LAYER,
    ITEM_TABLE,
    AdaptedRetriever,
    adapted_layers,
    centre_items,
)
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from recsys.training.loop import TrainConfig, TrainingDiverged, TrainResult, train
from recsys.training.optim import adamw
from recsys.training.progress import SilentTracker
from serving.bundle.adapters import BaseName, publish_adapter, write_adapter
from serving.bundle.delta import Link, chain_of
from serving.bundle.manifest import CURRENT, Verdict

Model = TwoTower | SequenceModel
Split = Literal["train", "all"]
MODELS: Mapping[BaseName, type[TwoTower] | type[SequenceModel]] = {
    "two_tower": TwoTower,
    "sequence": SequenceModel,
}
KS = (10,)


@dataclass(frozen=True, kw_only=True)
class Task:
    """All that training for one domain needs."""

    config: RunConfig
    inputs: ModelInputs
    domains: Domains
    domain: int
    base: BaseName
    show_progress: bool

    @property
    def device(self) -> torch.device:
        return training_device(self.config.adapter)

    @property
    def max_history(self) -> int:
        sizes = {
            "two_tower": self.config.two_tower.max_history,
            "sequence": self.config.sequence.max_length,
        }
        return sizes[self.base]

    @property
    def item_rows(self) -> Tensor:
        """The domain's items, ascending."""
        return torch.from_numpy(np.flatnonzero(self.domains.own_items(self.domain)))

    def load(self, directory: Path) -> Model:
        """Read a model over the workspace's catalogue.

        Raises:
            ValueError: If it was built from other data than the workspace holds.
        """
        model = MODELS[self.base].load(directory, self.inputs.catalogue)
        if model.inputs.num_item_rows != self.inputs.sizes.num_item_rows:
            raise ValueError(
                f"{directory} knows {model.inputs.num_item_rows} item rows, the workspace has "
                f"{self.inputs.sizes.num_item_rows}; run the pipeline again to release a base "
                "of this data"
            )
        return model.to(self.device)


def adapt(
    config: RunConfig, domain: str, *, publish: bool = True, show_progress: bool = False
) -> Adapted:
    """Train an adapter for a domain, hold it against the harm gate, register it.

    Raises:
        ValueError: If the domain, the run or the released bundle is not there.
        RefusedError: If the gate refuses it; names what failed. Nothing is registered.
    """
    current = bundles_dir(config) / CURRENT
    with Workspace(config.workspace).lock():
        inputs_there(config)
        if not current.exists():
            raise ValueError(f"{current} does not exist; release a bundle first: recsys run")
        return adapt_to(
            config, domain, current.resolve(), publish=publish, show_progress=show_progress
        )


def adapt_to(
    config: RunConfig, domain: str, bundle: Path, *, publish: bool, show_progress: bool
) -> Adapted:
    """Adapt a bundle's model, in a workspace that nobody else works in; errors as of ``adapt``."""
    begin = time.perf_counter()
    released, base = released_base(config, bundle)
    if base == "ranker":
        return adapt_ranker_to(
            config, domain, released, publish=publish, show_progress=show_progress
        )
    inputs, domains, order = load_inputs(config)
    task = Task(
        config=config,
        inputs=inputs,
        domains=domains,
        domain=domains.place_of(domain),
        base=base,
        show_progress=show_progress,
    )
    measured = config.workspace / f"train_{base}" / order / base
    best_step, metrics, verdicts = judge(task, task.load(measured))
    refuse_harm(config, domain, verdicts)

    model = task.load(released.directory / base)
    loss_at, num_now = losses(task, model, "all")
    _, num_before = losses(task, model, "train")
    adapter = new_adapter(task, model)
    growth = num_now / num_before
    whole = config.adapter.for_examples(num_before).num_steps
    num_steps = max(1, round(best_step * growth))
    steps = config.adapter.for_steps(num_steps, num_steps, max(1, round(whole * growth)))
    fit(task, adapter, loss_at, steps, None)
    directory = write_adapter(
        bundles_dir(config),
        adapter,
        domain=domain,
        base=base,
        base_version=released.manifest.version,
        metrics=metrics,
        verdicts=verdicts,
    )
    if publish:
        publish_adapter(directory)
    return Adapted(
        directory=directory,
        metrics=metrics,
        verdicts=verdicts,
        num_labels=len(domain_positions(inputs.sequences, "all", domains.own_items(task.domain))),
        num_steps=num_steps,
        share=adapter.share,
        seconds=time.perf_counter() - begin,
    )


def released_base(config: RunConfig, bundle: Path) -> tuple[Link, BaseName]:
    """Find what a bundle stands on and which of its models is adapted.

    Raises:
        ValueError: If it lacks the model that ``adapter.model`` names.
    """
    base = chain_of(bundle)[0]
    known: tuple[BaseName, ...] = ("sequence", "two_tower", "ranker")
    there = [name for name in known if (base.directory / name).is_dir()]
    wanted = config.adapter.model
    if (wanted != "auto" and wanted not in there) or not there:
        raise ValueError(
            f"adapter.model = {wanted!r}, but {base.directory} has {', '.join(there) or 'neither'}"
        )
    return base, there[0] if wanted == "auto" else wanted


def new_adapter(task: Task, model: Model) -> LoraAdapter:
    """Make an adapter by the run's seed; of a domain that the base knows it changes nothing yet."""
    torch.manual_seed(task.config.seed)
    settings, rows = task.config.adapter, task.item_rows
    config = settings.lora(adapted_layers(model))
    adapter = LoraAdapter(model, config, rows={ITEM_TABLE: rows})
    met = model.item_tower.item_counts[rows.to(task.device)] > 0
    if settings.centred > 0 and CONTENT_LAYER in adapter.layers and 2 * int(met.sum()) < len(met):
        centre_items(model, adapter, rows, settings.centred)
    return adapter.attach()


def judge(task: Task, model: Model) -> tuple[int, dict[str, dict[str, float]], list[Verdict]]:
    """Train on train and compare on held-out users; return the best step, metrics and verdicts."""
    config = task.config.adapter
    limit = config.validation_users
    halves = [
        DomainQueries.of(task.inputs, task.domains, task.domain, half, limit, task.config.seed)
        for half in (0, 1)
    ]
    picking, judging = halves[0].only_domain(), halves[1]
    name = task.domains.names[task.domain]
    if min(len(picking), len(judging.only_domain())) < 2:
        raise ValueError(
            f"domain {name!r} has {len(picking)} held-out users to pick a step by and "
            f"{len(judging.only_domain())} to judge by; it needs 2 of each"
        )
    base = measure(task, model.score, judging)
    adapter = new_adapter(task, model)
    loss_at, num_examples = losses(task, model, "train")

    def evaluate(_: nn.Module) -> Mapping[str, float]:
        return measure(task, model.score, picking).metrics

    steps = replace(config.for_examples(num_examples), metric=config.metric)
    result = fit(task, adapter, loss_at, steps, evaluate)
    adapter.detach()
    retriever = AdaptedRetriever(model, {name: adapter})
    adapted = measure(task, partial(score_mixed, retriever, task.domains.names), judging)
    results = {"base": base, "adapter": adapted}
    verdicts = harm_verdicts(judging, base, adapted, config)
    return result.best_step, metrics_of(judging, results, config.metric), verdicts


def score_mixed(
    retriever: AdaptedRetriever, names: tuple[str, ...], queries: JaggedBatch
) -> Tensor:
    """Score each query through the adapter of its domain, where it has one, [B, N]."""
    domains = [names[number] for number in queries["domain"].values.tolist()]
    return retriever.score(queries, domains)


def measure(
    task: Task, score: Callable[[JaggedBatch], Tensor], queries: DomainQueries
) -> RankingResult:
    """Rank held-out queries' items: the full catalogue, or as ``adapter.softmax_over`` says."""
    held_out, elsewhere = queries.held_out, ~torch.from_numpy(task.domains.own_items(task.domain))

    def ranked(batch: JaggedBatch) -> Tensor:
        scores = score(batch.to(task.device))
        if task.config.adapter.softmax_over == "domain":
            own = batch["domain"].values == task.domain
            scores[(own[:, None] & elsewhere).to(scores.device)] = -torch.inf
        return scores

    return evaluate_ranking(
        ranked,
        queries.batches(task.inputs, task.config, task.max_history),
        held_out.targets,
        RankingConfig(ks=KS),
        exclude=held_out.seen if task.config.evaluation.exclude_history else None,
    )


def losses(task: Task, model: Model, split: Split) -> tuple[Callable[[int], Tensor], int]:
    """Give the loss of each step on a domain's labels of a split, and the number of examples.

    Raises:
        ValueError: If the domain has no label there.
    """
    own, sequences = task.domains.own_items(task.domain), task.inputs.sequences
    size, seed, device = task.config.adapter.batch_size, task.config.seed, task.device
    if isinstance(model, TwoTower):
        positions = domain_positions(sequences, split, own)
        num_examples = len(positions)
    else:
        windows = training_windows(sequences, split, model.config.max_length)
        windows = domain_windows(sequences, windows, own)
        num_examples = len(windows)
    if num_examples == 0:
        raise ValueError(
            f"domain {task.domains.names[task.domain]!r} has no event to learn from in {split!r}; "
            "users need an event before it"
        )
    order = BatchOrder(num_examples, min(size, num_examples), seed)
    by_domain = task.config.adapter.softmax_over == "domain"
    softmax_over = task.item_rows.to(device) if by_domain else None

    def loss_at(step: int) -> Tensor:
        chosen = order.indices(step)
        if isinstance(model, TwoTower):
            queries = task.inputs.queries(positions[chosen], max_history=task.max_history)
            labels = sequences.labels(positions[chosen])
            return model.loss(queries.to(device), labels.to(device))
        starts, ends = windows.starts[chosen], windows.ends[chosen]
        batch = domain_window_batch(sequences, starts, ends, own)
        return model.loss(batch.to(device), softmax_over)

    return loss_at, num_examples


def fit(
    task: Task,
    adapter: LoraAdapter,
    loss_at: Callable[[int], Tensor],
    steps: TrainConfig,
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None,
) -> TrainResult:
    """Train an adapter over its frozen base.

    Raises:
        UnstableTrainingError: If loss or gradients did not stay finite.
    """
    name = task.domains.names[task.domain]
    title = f"{name} ({'judged' if evaluate else 'everything'})"
    try:
        with ProgressBar(title, visible=task.show_progress) as progress:
            return train(
                adapter,
                loss_at,
                adamw(adapter, task.config.adapter.optimizer),
                steps,
                evaluate=evaluate,
                tracker=SilentTracker(),
                progress=progress,
            )
    except TrainingDiverged as error:
        raise UnstableTrainingError(str(error)) from error
