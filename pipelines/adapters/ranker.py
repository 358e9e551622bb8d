"""Adapt a released ranker to one domain: half of its validation users teach, the others judge.

Sources of candidates were fitted on train and so have not seen validation's events. The ranker
learned from train events too and is released as it was trained, and so is its adapter: even
validation users of the domain teach it, every fifth of them picks its step, odd ones judge, and
what was judged is registered.

Axes: U queries, k candidates of each.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from pipelines.adapters.gate import harm_verdicts, metrics_of
from pipelines.adapters.inputs import DomainQueries, load_inputs
from pipelines.adapters.outcome import Adapted, refuse_harm
from pipelines.candidates.blends import FAST, profiles_of
from pipelines.candidates.examples import examples_of
from pipelines.candidates.load import READS, load_sources
from pipelines.candidates.sources import Source
from pipelines.config.run import RunConfig
from pipelines.engine.errors import UnstableTrainingError
from pipelines.engine.stage import StageContext
from pipelines.engine.workspace import Workspace, bundles_dir
from pipelines.ranking.artefact import ProfileRanker, load_ranker, reordered
from pipelines.ranking.examples import Asked, candidates_for, outcomes_of
from pipelines.training.run import ProgressBar, training_device
from recsys.data.batch import Jagged
from recsys.data.top_k import TopK
from recsys.evaluation.ranking import RankingResult, list_ranks, per_user_metric
from recsys.fitting.inputs import ModelInputs
from recsys.layers.lora.linear import LoraAdapter, digest_of_weights
from recsys.models.adapted.model import twin_of
from recsys.models.adapted.ranker import AdaptedRanker, ranker_targets
from recsys.models.ranker.model import Ranker
from recsys.training.loop import TrainingDiverged, train
from recsys.training.optim import adamw
from recsys.training.progress import SilentTracker
from recsys.training.ranker_fit import scores_of, step_losses
from recsys.training.ranking_examples import RankingExamples
from recsys.training.ranking_examples import labels_of as labels_of_candidates
from serving.bundle.adapters import publish_adapter, write_adapter
from serving.bundle.delta import Link
from serving.surfaces import HOME

PICKS_ONE_IN = 5
"""Of the users that teach, one of so many picks the step instead."""
LEAST_TAUGHT = 10
"""Users with their item among the candidates, below which nothing is learned."""


@dataclass(frozen=True, kw_only=True)
class Ground:
    """What a domain's adapter is trained and judged on."""

    config: RunConfig
    inputs: ModelInputs
    trained: ProfileRanker
    sources: Mapping[str, Source]

    @classmethod
    def of(cls, config: RunConfig, inputs: ModelInputs, order: str, released: Link) -> Ground:
        """Read the ranker of the run that was released, and its sources of candidates.

        Raises:
            ValueError: If the run trained none, or another one was released.
        """
        trained = load_ranker(config.workspace / "train_ranker" / order, inputs.catalogue)
        there = released.directory / "ranker"
        if trained is None or not there.is_dir():
            raise ValueError(
                f"{config.workspace} and {there.parent} do not both have a ranker to adapt; set "
                "ranker_training.enabled and run the pipeline"
            )
        digests = [
            digest_of_weights(one) for one in (trained.model, Ranker.load(there, inputs.catalogue))
        ]
        if digests[0] != digests[1]:
            raise ValueError(
                f"the workspace's ranker has digest {digests[0]}, the released one {digests[1]}; "
                "run the pipeline again, so that both are of one run"
            )
        workspace = config.workspace
        context = StageContext(
            config=config,
            workspace=Workspace(workspace),
            inputs={name: workspace / name for name in READS},
            output=workspace,
            checkpoints=workspace,
            making="adapt",
        )
        fitted = load_sources(context, inputs, order)
        asked = {name: fitted[name] for name in profiles_of(fitted)[FAST]}
        return cls(config=config, inputs=inputs, trained=trained, sources=asked)

    def examples(self, queries: DomainQueries) -> RankingExamples:
        """Give held-out queries the candidates that they would be served, and what came of them."""
        inputs, trained, held_out = self.inputs, self.trained, queries.held_out
        told = examples_of(self.sources, inputs, held_out, queries.item_counts, self.config)
        asked = inputs.queries(held_out.positions, max_history=HOME.max_history)
        candidates = candidates_for(
            Asked(held_out, told, asked),
            trained.blend,
            trained.against_history,
            trained.num_candidates,
        )
        features = self.config.workspace / "build_features"
        outcomes = outcomes_of(features, inputs, held_out)
        tasks, like_from = trained.model.inputs.tasks, self.config.ranker_training.like_from
        labels = labels_of_candidates(
            candidates.top.item_rows, held_out.targets, outcomes, tasks, like_from
        )
        return RankingExamples(asked, candidates, labels)


def adapt_ranker_to(
    config: RunConfig, domain: str, released: Link, *, publish: bool, show_progress: bool
) -> Adapted:
    """Adapt a bundle's ranker, in a workspace that nobody else works in; errors as of ``adapt``."""
    begin, adapting = time.perf_counter(), config.adapter
    inputs, domains, order = load_inputs(config)
    number = domains.place_of(domain)
    ground = Ground.of(config, inputs, order, released)
    halves = [
        DomainQueries.of(inputs, domains, number, half, adapting.validation_users, config.seed)
        for half in (0, 1)
    ]
    learning, judging = halves[0].only_domain(), halves[1]
    adapter, best_step, num_labels = taught(ground, learning, domain, show_progress)
    seen = ground.examples(judging)
    base = measured(ground, judging, seen, {})
    adapted = measured(ground, judging, seen, {domain: adapter})
    verdicts = harm_verdicts(judging, base, adapted, adapting)
    refuse_harm(config, domain, verdicts)
    metrics = metrics_of(judging, {"base": base, "adapter": adapted}, adapting.metric)
    directory = write_adapter(
        bundles_dir(config),
        adapter,
        domain=domain,
        base="ranker",
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
        num_labels=num_labels,
        num_steps=best_step,
        share=adapter.share,
        seconds=time.perf_counter() - begin,
    )


def taught(
    ground: Ground, learning: DomainQueries, domain: str, show_progress: bool
) -> tuple[LoraAdapter, int, int]:
    """Train an adapter over the frozen ranker; also its best step, and how many users taught it.

    Raises:
        ValueError: If there is too little to learn from or to pick a step by.
        UnstableTrainingError: If loss or gradients did not stay finite.
    """
    config, adapting = ground.config, ground.config.adapter
    device, model = training_device(adapting), ground.trained.model
    examples = ground.examples(learning)
    found = examples.found()
    picks, learned_from = (
        found[found % PICKS_ONE_IN == 0],
        found[found % PICKS_ONE_IN != 0],
    )
    if len(picks) < 2 or len(learned_from) < LEAST_TAUGHT:
        raise ValueError(
            f"domain {domain!r} has {len(learned_from)} held-out users to learn from whose item is "
            f"among the candidates, and {len(picks)} to pick a step by; it needs {LEAST_TAUGHT} "
            "and 2: give more data, or adapt the model that retrieves"
        )
    model = model.to(device)
    torch.manual_seed(config.seed)
    lora = replace(adapting.lora(ranker_targets(model)), tables=())
    adapter = LoraAdapter(model, lora).attach()

    def evaluate(_: nn.Module) -> Mapping[str, float]:
        order = reordered_by(model, examples, picks)
        targets = learning.held_out.targets.take(picks)
        values = per_user_metric(list_ranks(order.item_rows, targets), adapting.metric)
        return {adapting.metric: float(values.nanmean())}

    steps = replace(adapting.for_examples(len(learned_from)), metric=adapting.metric)
    try:
        with ProgressBar(f"{domain} (ranker)", visible=show_progress) as progress:
            result = train(
                adapter,
                steps_of(ground, examples, learned_from, device),
                adamw(adapter, adapting.optimizer),
                steps,
                evaluate=evaluate,
                tracker=SilentTracker(),
                progress=progress,
            )
    except TrainingDiverged as error:
        raise UnstableTrainingError(str(error)) from error
    adapter.detach()
    model.to("cpu").eval()
    return adapter.to("cpu").eval(), result.best_step, len(learned_from)


def steps_of(
    ground: Ground, examples: RankingExamples, learned_from: Tensor, device: torch.device
) -> Callable[[int], Tensor]:
    """Give the loss of each step, the ranker's own, which depends on the step alone."""
    config, model = ground.config, ground.trained.model
    training = replace(config.ranker_training, batch_size=config.adapter.batch_size)
    losses = step_losses(model, examples, learned_from, training, config.seed, device)

    def loss_at(step: int) -> Tensor:
        # A base that trains would move the biases of its router.
        model.eval()
        return losses(step)

    return loss_at


def reordered_by(model: Ranker, examples: RankingExamples, chosen: Tensor) -> TopK:
    """Order the candidates of some queries."""
    top = examples.candidates.top
    before = TopK(top.scores[chosen], top.item_rows[chosen])
    return reordered(before, scores_of(model, examples, chosen))


def measured(
    ground: Ground,
    queries: DomainQueries,
    examples: RankingExamples,
    adapters: Mapping[str, LoraAdapter],
) -> RankingResult:
    """Order every query's candidates as serving does, each by the adapter of its domain."""
    model = ground.trained.model
    served = AdaptedRanker(twin_of(model), adapters)
    top = examples.candidates.top
    scores = torch.full(top.item_rows.shape, -torch.inf)
    for query, number in enumerate(queries.domain_of_query.tolist()):
        domain = queries.names[number]
        batch = examples.whole_batch(torch.tensor([query]))
        there = top.item_rows[query] > 0
        reader = model.reader_of(batch, 0)
        asked = batch.candidates.values, batch.candidate_dense
        if served.knows(domain):
            scores[query, there] = served.score_candidates(reader, *asked, domain)
        else:
            scores[query, there] = model.score_candidates(reader, *asked)
    lists, targets = reordered(top, scores), queries.held_out.targets
    return RankingResult(
        metrics={},
        num_users=len(queries),
        user_rows=torch.arange(len(queries)),
        targets=targets,
        ranks=Jagged(list_ranks(lists.item_rows, targets).values, targets.offsets),
        top_k=lists,
    )
