"""Lists of a ranker's candidates made by a Ray cluster, each task some whole batches of queries.

Nodes read the features and the fitted models at the same paths as this machine and query them by
the code that runs here otherwise, batch by batch, so that the lists are the same. A process reads
models once and keeps them for its next tasks. They work on processors.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from pipelines.candidates.load import READS, load_sources
from pipelines.config.run import RunConfig
from pipelines.config.toml import plain, validate
from pipelines.engine.stage import StageContext
from pipelines.engine.workspace import Workspace
from pipelines.executor.ray_cluster import RayRunner, ray_cluster
from pipelines.inputs.tensors import HeldOut, read_inputs, retrieval_settings
from pipelines.ranking.out_of_sample import REFITTED, hold_back
from recsys.data.top_k import TopK
from recsys.fitting.blend import joined_by_source, lists_by_source
from recsys.fitting.inputs import ModelInputs
from recsys.fitting.queries import EvaluationQueries
from recsys.retrieval.sources import Source
from recsys.training.distributed.several import present_ranks

QUERIES_A_TASK = 1_024
MODELS_OF = ("fit_baselines", "train_two_tower", "train_sequence", "train_generative")
"""The stages whose models stand beside each other in a folder of refitted ones."""
Lists = dict[str, TopK]


@dataclass(frozen=True, kw_only=True)
class Models:
    """Which models a node reads, and for what."""

    config: str
    """The run's, as JSON."""
    folders: tuple[tuple[str, str], ...]
    """Of the artefacts, by stage."""
    order: str
    names: tuple[str, ...]
    held_back: bool
    """Whether they were fitted without the held-back events."""


@contextmanager
def cluster_of(context: StageContext) -> Iterator[RayRunner | None]:
    """Join the run's Ray cluster; None where lists are made here, as by each of several ranks."""
    if context.config.engine != "ray" or present_ranks().size > 1:
        yield None
        return
    with ray_cluster(context.config.ray) as run:
        yield run


def maker(
    run: RayRunner | None, context: StageContext, order: str, *, held_back: bool
) -> Callable[[Mapping[str, Source], EvaluationQueries], Lists]:
    """Choose what queries sources: a cluster, or this process."""
    if run is None:
        return lists_by_source
    folders = {name: context.inputs[name] for name in READS if name in context.inputs}
    if held_back:
        folders |= dict.fromkeys(MODELS_OF, context.checkpoints / REFITTED)

    def make(sources: Mapping[str, Source], queries: EvaluationQueries) -> Lists:
        models = Models(
            config=json.dumps(plain(context.config)),
            folders=tuple((name, str(path.absolute())) for name, path in folders.items()),
            order=order,
            names=tuple(sources),
            held_back=held_back,
        )
        tasks = [(models, part) for part in parts_of(queries)]
        if len(tasks) < 2:
            return lists_by_source(sources, queries)
        return joined_by_source(list(run(lists_on_node, tasks)))

    return make


def parts_of(queries: EvaluationQueries) -> Iterator[HeldOut]:
    """Cut queries into tasks of whole batches."""
    batch = queries.settings.batch_size(queries.num_item_rows)
    size = batch * max(1, QUERIES_A_TASK // batch)
    for begin in range(0, len(queries), size):
        yield queries.held_out.take(np.arange(begin, min(begin + size, len(queries))))


def lists_on_node(task: tuple[Models, HeldOut]) -> Lists:
    """Query every source where this runs, by source."""
    models, held_out = task
    config, inputs, sources = loaded(models)
    settings = retrieval_settings(config)
    queries = EvaluationQueries(inputs=inputs, held_out=held_out, settings=settings)
    return lists_by_source(sources, queries)


@lru_cache(maxsize=2)
def loaded(models: Models) -> tuple[RunConfig, ModelInputs, dict[str, Source]]:
    """Read the models of a task once a process."""
    config = validate(RunConfig, json.loads(models.config), "the task's settings")
    config = replace(config, device="cpu")
    folders = {name: Path(path) for name, path in models.folders}
    inputs = read_inputs(folders["build_features"], folders.get("embed_items"), models.order)
    fitted_on = inputs
    if models.held_back:
        fitted_on = hold_back(inputs, config.ranker_training, config.seed).inputs
    sources = load_sources(context_of(config, folders), fitted_on, models.order)
    return config, inputs, {name: sources[name] for name in models.names}


def context_of(config: RunConfig, inputs: Mapping[str, Path]) -> StageContext:
    """Describe what ``load_sources`` reads; nothing is written."""
    return StageContext(
        config=config,
        workspace=Workspace(config.workspace),
        inputs=inputs,
        output=config.workspace,
        checkpoints=config.workspace,
        making="",
    )
