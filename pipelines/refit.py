"""Stage refit: fit the models that are released on everything, held-out events included.

The two-tower has no validation left to stop by, so it takes the number of passes that was best on
validation, with the learning-rate schedule of that run.
"""

from __future__ import annotations

import json

from pipelines.artifacts import to_json
from pipelines.fit_baselines import fit_models, save_models
from pipelines.model_inputs import ModelInputs, released_order
from pipelines.stage import StageContext, StageRows
from pipelines.train_two_tower import fit_two_tower
from pipelines.training import Curve, ProgressBar, TrainingRun


def refit(context: StageContext) -> StageRows:
    """Fit popularity, item-to-item and two-tower on all events, in the first tie order."""
    config, order = context.config, released_order(context.inputs["build_features"])
    inputs = ModelInputs.load(
        context.inputs["build_features"], context.inputs.get("embed_items"), order
    )
    sequences, num_item_rows = inputs.sequences, inputs.sizes.num_item_rows
    save_models(fit_models(sequences, num_item_rows, config, "all"), context.output)

    trained = json.loads(
        (context.inputs["train_two_tower"] / order / "training.json").read_text(encoding="utf-8")
    )
    num_labels = len(sequences.label_positions("all"))
    growth = num_labels / trained["num_labels"]
    before = config.training.for_examples(trained["num_labels"])
    num_steps = max(1, round(trained["best_step"] * growth))
    train_config = config.training.for_steps(
        num_steps, num_steps, decay_steps=max(1, round(before.num_steps * growth))
    )
    curve = Curve(context.run, kept=context.checkpoints / f"{order}.jsonl")
    with ProgressBar("two-tower (everything)", visible=context.show_progress) as progress:
        model, result = fit_two_tower(
            inputs,
            config,
            train_config,
            TrainingRun(context.checkpoints / order, progress, curve),
            split="all",
        )
    model.to("cpu").save(context.output / "two_tower")
    curve.write(context.output / "curve.jsonl")
    (context.output / "training.json").write_text(
        to_json({"num_steps": result.num_steps, "num_labels": num_labels})
    )
    return StageRows(
        rows_in=num_labels, rows_out=num_item_rows - 1, more={"steps": result.num_steps}
    )
