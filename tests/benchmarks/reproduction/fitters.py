"""The fit of each model of a recipe; the generative one may learn from the sequence model.

Axes: N item rows, D width of item vectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from torch import Tensor

from recsys.fitting.catalogue import SPECS
from recsys.fitting.generative import SequenceTeacher, fit_generative
from recsys.models.names import BY_NAME, GENERATIVE, SEQUENCE
from recsys.models.sequence.model import SequenceModel
from recsys.replay.experiment import FittedSource
from recsys.retrieval.generated import generated_source
from recsys.semantic_ids.behaviour import behaviour_ids
from recsys.semantic_ids.codes import ItemCodes
from recsys.semantic_ids.rq_kmeans import KMeansConfig, ResidualKMeansConfig
from tests.benchmarks.recipes.fit import Experiment, fit_source

TEACHER = "sequence_model"


def sequence_source(experiment: Experiment) -> FittedSource:
    """Train the sequence model; of members trained apart those of profile fast alone."""
    fitted = fit_source(experiment, SEQUENCE.name)
    if experiment.checkpoints is not None:
        # After the checkpoints' folder is known to be there: the training has made it.
        assert isinstance(fitted.model, SequenceModel)
        fitted.model.save(experiment.checkpoints / TEACHER)
    return fitted


def sequence_model(experiment: Experiment) -> SequenceModel:
    """Return the recipe's sequence model, fitted here if it was not."""
    saved = None if experiment.checkpoints is None else experiment.checkpoints / TEACHER
    if saved is not None and saved.exists():
        model = SequenceModel.load(saved, experiment.prepared.catalogue)
        return model.to(experiment.device).eval()
    model = fit_source(experiment, SEQUENCE.name).model
    assert isinstance(model, SequenceModel)
    return model


def generated_ids(experiment: Experiment, behaviour: Tensor | None) -> ItemCodes:
    """Return the semantic IDs that the recipe generates.

    Args:
        experiment: Whose recipe.
        behaviour: Item vectors of its sequence model, [N, D], where IDs are made of them.

    Raises:
        ValueError: The arrays have none.
    """
    prepared, codes = experiment.prepared, experiment.prepared.item_codes()
    if behaviour is None:
        return codes
    # Only items that have an ID as prepared get one.
    known = (codes.codes[:, :1] >= 0).float().to(experiment.device)
    content = prepared.catalogue.content.to(experiment.device) * known
    config = ResidualKMeansConfig(
        level_sizes=codes.level_sizes, kmeans=KMeansConfig(balanced=True), seed=experiment.seed
    )
    ids = behaviour_ids(behaviour, content, config).ids
    return replace(codes, codes=ids.codes, level_sizes=ids.level_sizes)


def generative_source(experiment: Experiment) -> FittedSource:
    """Train the generative model, and the sequence model first where it needs that."""
    recipe = experiment.recipe
    training = recipe.generative_training
    by_behaviour = recipe.generative_ids == "sequence"
    is_taught = recipe.generative.items == "codes_vectors" or recipe.generative_teaching.share > 0
    sequence = sequence_model(experiment) if is_taught or by_behaviour else None
    behaviour = None
    if sequence is not None and by_behaviour:
        behaviour = sequence.all_item_vectors()
    codes = generated_ids(experiment, behaviour)
    teacher = None
    if sequence is not None and is_taught:
        teacher = SequenceTeacher(sequence, recipe.generative_teaching)
    start = experiment.start(SPECS[GENERATIVE.name], recipe.generative)
    assert start.stop_by is not None
    fitted = fit_generative(
        experiment.fitted_on,
        codes,
        recipe.generative,
        training,
        start.run,
        start.stop_by,
        teacher=teacher,
    )
    source = generated_source(fitted.model, codes, recipe.retrieval.beam_width)
    return FittedSource(source, fitted.result, fitted.model)


FITTERS: Mapping[str, Callable[[Experiment], FittedSource]] = {
    **{name: partial(fit_source, name=name) for name in BY_NAME},
    SEQUENCE.name: sequence_source,
    GENERATIVE.name: generative_source,
}
