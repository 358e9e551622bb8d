"""The released ranker, and held-out queries with the candidates that it orders."""

from __future__ import annotations

from pipelines.adapters.task import DomainQueries, Task
from pipelines.candidates.blends import FAST, list_profiles, source_lists
from pipelines.candidates.load import READS, load_sources
from pipelines.engine.stage import StageContext
from pipelines.engine.workspace import Workspace
from pipelines.ranking.artefact import measured_ranker
from pipelines.ranking.examples import ranking_examples, read_outcomes
from recsys.layers.lora.linear import digest_of_weights
from recsys.models.ranker.model import Ranker
from recsys.training.ranking_examples import RankingExamples
from serving.bundle.published import Link
from serving.bundle.ranker import LoadedRanker


def workspace_ranker(task: Task, released: Link) -> LoadedRanker:
    """Load the workspace's ranker if it is the released one."""
    workspace, catalogue = task.config.workspace, task.inputs.catalogue
    ranker = measured_ranker(workspace / "train_ranker" / task.order, catalogue)
    directory = released.directory / "ranker"
    if ranker is None or not directory.is_dir():
        raise ValueError(
            f"{workspace} and {released.directory} do not both have a ranker to adapt; set "
            "ranker_training.enabled and run the pipeline"
        )
    own, other = (
        digest_of_weights(one) for one in (ranker.model, Ranker.load(directory, catalogue))
    )
    if own != other:
        raise ValueError(
            f"the workspace's ranker has digest {own}, the released one {other}; run the pipeline "
            "again, so that both are of one run"
        )
    return ranker


def domain_examples(
    task: Task, ranker: LoadedRanker, *halves: DomainQueries
) -> list[RankingExamples]:
    """Label held-out queries with the candidates that they would be served."""
    config, inputs, workspace = task.config, task.inputs, task.config.workspace
    context = StageContext(
        config=config,
        workspace=Workspace(workspace),
        inputs={name: workspace / name for name in READS},
        output=workspace,
        checkpoints=workspace,
        making="adapt",
    )
    sources = load_sources(context, inputs, task.order)
    sources = {name: sources[name] for name in list_profiles(sources)[FAST]}
    return [
        ranking_examples(
            ranker.builder,
            inputs,
            queries.held_out,
            source_lists(sources, inputs, queries.held_out, inputs, config),
            read_outcomes(workspace / "build_features", inputs, queries.held_out),
            ranker.model.inputs.tasks,
            config.ranker_training.like_from,
        )
        for queries in halves
    ]
