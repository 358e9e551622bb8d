"""Stage refit: fit the models that are released on everything, held-out events included.

Trained models have no validation left to stop by, so each takes the number of passes that was best
on validation, with the learning-rate schedule of that run.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pipelines.engine.artifacts import to_json
from pipelines.engine.stage import StageContext, StageRows
from pipelines.inputs.tensors import read_inputs, released_order
from pipelines.training.baselines import fit_models, save_models
from pipelines.training.refits import Again, trainings
from pipelines.training.run import Curve, ProgressBar, TrainingRun, save_model


def train_again(context: StageContext, again: Again) -> int:
    """Train one model and write it with its curve; return its number of steps."""
    kept = context.checkpoints / again.name
    curve = Curve(context.run, again.name, kept.with_suffix(".jsonl"))
    title = f"{again.name.replace('_', '-')} (everything)"
    with ProgressBar(title, visible=context.show_progress) as progress:
        model, result = again.fit(again.train_config(), TrainingRun(kept, progress, curve))
    save_model(model, context.output, again.name)
    folder = context.output / "trainings" / again.name
    folder.mkdir(parents=True)
    curve.write(folder / "curve.jsonl")
    document: Mapping[str, Any] = {
        "num_steps": result.num_steps,
        "num_examples": again.num_examples[1],
    }
    (folder / "training.json").write_text(to_json(document))
    return result.num_steps


def refit(context: StageContext) -> StageRows:
    """Fit every model that was measured on all events, in the first tie order."""
    config, order = context.config, released_order(context.inputs["build_features"])
    inputs = read_inputs(context.inputs["build_features"], context.inputs.get("embed_items"), order)
    save_models(fit_models(inputs, config, "all"), context.output)
    num_steps = 0
    for again in trainings(context, inputs, order):
        if (again.trained / "training.json").exists():
            num_steps += train_again(context, again)
    return StageRows(
        rows_in=len(inputs.sequences.label_positions("all")),
        rows_out=inputs.sizes.num_item_rows - 1,
        more={"steps": num_steps},
    )
