"""Stage refit: fit the models that are released on everything, held-out events included.

Trained models have no validation left to stop by, so each takes the number of passes that was best
on validation, with the learning-rate schedule of that run; or, where ``refit_epochs`` is set, its
trained weights are continued for that number of passes over all events.
"""

from __future__ import annotations

from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import read_inputs, retrieval_settings
from pipelines.semantic_ids.store import read_item_codes
from pipelines.training.baselines import fit_untrained
from pipelines.training.fitters import ModelFitter, read_refit, was_trained
from pipelines.training.train import fit, write_training
from recsys.fitting.catalogue import CATALOGUE
from recsys.fitting.queries import GIVEN
from recsys.fitting.spec import Data
from recsys.models.names import SEQUENCE


def refit_model(context: StageContext, data: Data, fitter: ModelFitter) -> int:
    """Fit one model on everything and write it with its curve; return its number of steps."""
    name, inputs = fitter.name, data.inputs
    trained = context.inputs[fitter.spec.names.stage] / GIVEN
    if not was_trained(trained):
        return 0
    chosen = read_refit(trained, fitter, inputs, may_continue=True)
    fitted, curve = fit(context, fitter, data, "all", chosen, name=name, note="everything")
    fitter.spec.write(fitted.model, context.output)
    document = {"num_steps": fitted.result.num_steps, "num_examples": fitted.num_examples}
    write_training(context.output / "trainings" / name, curve, document)
    return fitted.result.num_steps


def refit(context: StageContext) -> StageRows:
    """Fit every model that was measured on all events."""
    config = context.config
    inputs = read_inputs(context.inputs["build_features"], context.inputs.get("embed_items"))
    chosen = context.inputs["fit_baselines"] / GIVEN
    for name, model in fit_untrained(inputs, config, "all", chosen).items():
        model.save(context.output / name)
    item_codes = context.inputs["build_semantic_ids"]
    taught_by = context.output / SEQUENCE.name if config.generation_is_taught() else None
    data = Data(
        inputs=inputs,
        settings=retrieval_settings(config),
        item_codes=lambda: read_item_codes(item_codes),
        teacher=taught_by,
    )
    # The sequence model comes before the generative one, which may learn from it.
    trained = [one for one in CATALOGUE if one.names.training and not one.names.variant_of]
    num_steps = sum(refit_model(context, data, ModelFitter.of(one, config)) for one in trained)
    return StageRows(
        rows_in=inputs.sequences.num_labels("all"),
        rows_out=inputs.sizes.num_item_rows - 1,
        more={"steps": num_steps},
    )
