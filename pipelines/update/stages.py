"""The stages of an increment: what a full run does, with trained models continued.

They have the full run's names, so later stages read what they always read. ``fit_blend`` is the
served bundle's; so are the weights of generative model and ranker, with rows for new items.

Axes: U user rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.torch import load_file

from features.build import build_features as build
from features.schema import NewestSplit
from features.user_ids import FEATURE, read_owners, renewed
from pipelines.engine.artifacts import to_json
from pipelines.engine.memory import free_memory
from pipelines.engine.stage import Stage, StageContext, StageRows
from pipelines.engine.workspace import bundles_dir
from pipelines.inputs.item_columns import check_images
from pipelines.inputs.tensors import read_inputs
from pipelines.partitions.manifest import PartitionsManifest
from pipelines.partitions.source import parse_begin
from pipelines.publishing.released import (
    HELD_OUT,
    RELEASED,
    Released,
    link_tree,
    released_folder,
    shop_workspace,
)
from pipelines.ranking.artefact import RANKER
from pipelines.semantic_ids.artefact import read_item_codes
from pipelines.stages.build_features import features_config
from pipelines.stages.embed_items import embed_items as embed_all_items
from pipelines.stages.list import STAGES
from pipelines.training.baselines import baselines_of
from pipelines.training.fitters import ModelFitter, whole_model
from pipelines.training.run import fit, write_training
from recsys.content.attribute_schema import build_extraction
from recsys.content.columns import ColumnEncoder
from recsys.fitting.grown import grown_generative, grown_ranker, without_rows
from recsys.fitting.queries import GIVEN, ModelInputs, NewEvents
from recsys.fitting.sequence import SEQUENCE
from recsys.fitting.spec import Data, ModelSpec, Refit
from recsys.fitting.two_tower import TWO_TOWER
from recsys.models.ranker.model import Ranker
from recsys.models.sequence.config import SequenceConfig
from recsys.models.sequence.members import of_first
from serving.bundle.manifest import bundle_directory, read_manifest

CARRIED = ("fit_blend",)
"""Stages whose artefacts are those of the served bundle."""
FITTED = ("fit_baselines", "train_two_tower", "train_sequence", "train_generative")
SINCE = "new_since.json"


def base_of(context: StageContext) -> tuple[Path, Released]:
    """Find what the served bundle was made from."""
    folder = context.inputs[RELEASED]
    base = Released.read(folder)
    assert base is not None
    return folder, base


def weights_of(context: StageContext) -> tuple[Path, Released]:
    """Find the run whose trained weights are continued: the served one, or its last full run."""
    folder, base = base_of(context)
    if context.config.backtest.continue_from == "last" or base.full_version == base.version:
        return folder, base
    full = released_folder(context.config.workspace, base.full_version)
    found = Released.read(full)
    return (folder, base) if found is None else (full, found)


def new_since(base: Released, workspace: Path) -> int:
    """Unix seconds from which events are new: those of changed partitions, or later than all."""
    assert base.until is not None
    manifest = PartitionsManifest.read(shop_workspace(workspace))
    if manifest is None:
        return base.until + 1
    digests = manifest.digests()
    changed = [key for key in digests if base.partitions.get(key) != digests[key]]
    begins = [int(parse_begin(key).timestamp()) for key in changed]
    return min([*begins, base.until + 1])


def build_features(context: StageContext) -> StageRows:
    """Build the features with the rows of the served bundle; new users and items follow."""
    folder, base = base_of(context)
    since = new_since(base, context.config.workspace)
    updates = context.config.updates
    config = replace(
        features_config(context.config),
        previous=folder / "build_features",
        newest=NewestSplit(
            since=since,
            share=updates.held_out_share,
            min_users=updates.min_held_out,
            # Drawn by the day, so that no user is held out each time.
            seed=context.config.seed + since,
        ),
        write_events=False,
    )
    report = build(config, context.output, memory=free_memory())
    (context.output / SINCE).write_text(to_json({"since": since}))
    return StageRows(
        rows_in=report.rows_in,
        rows_out=report.events,
        more={"users": report.users, "items": report.items},
    )


def new_events(context: StageContext, inputs: ModelInputs) -> NewEvents:
    """Return the events that continued weights have not seen: newer or held-out ones."""
    folder, base = weights_of(context)
    sequences, config = inputs.sequences, context.config
    assert sequences.times is not None
    times, offsets = np.asarray(sequences.times), np.asarray(sequences.offsets)
    since = np.full(len(offsets) - 1, new_since(base, config.workspace), np.int64)  # [U]
    if base.held_out_since is not None:
        held_out = np.load(folder / HELD_OUT, allow_pickle=False)
        since[held_out] = np.minimum(since[held_out], base.held_out_since)
    owners = np.repeat(np.arange(len(since)), np.diff(offsets))
    old = np.concatenate([[0], np.cumsum(times < since[owners])])
    starts = offsets[:-1] + old[offsets[1:]] - old[offsets[:-1]]
    if config.updates.counts_only:
        starts = offsets[1:]
    share = 0.0 if config.updates.counts_only else config.backtest.replay_share
    return NewEvents(starts=starts, replay_share=share, seed=config.seed + int(since.max()))


def read_model_inputs(context: StageContext) -> ModelInputs:
    """Read the events and the catalogue as tensors."""
    return read_inputs(context.inputs["build_features"], context.inputs.get("embed_items"), GIVEN)


def embed_items(context: StageContext) -> StageRows:
    """Encode the catalogue as that of the served bundle was."""
    base = base_of(context)[1]
    served = read_manifest(bundle_directory(bundles_dir(context.config), base.version))[0].content
    columns = [] if served is None else served.columns
    check_images(context.config.content, "" if served is None else served.images, base.version)
    weight = context.config.content.column_weight
    made = None if served is None else served.enrichment
    extraction = build_extraction(context.config.enrichment.attributes)
    keep = None if made is None else extraction.keep if made.kept is None else made.kept
    if made is not None and made.prompt_version != extraction.version:
        raise ValueError(
            f"the items of bundle {base.version} were described with prompt {made.prompt_version}, "
            f"enrichment.attributes now make prompt {extraction.version}; put them back, or run "
            "the whole pipeline"
        )
    return embed_all_items(context, ColumnEncoder.of(columns, weight), keep)


def fit_baselines(context: StageContext) -> StageRows:
    """Refit the models that have no training, with the settings of the served ones."""
    folder, _ = base_of(context)
    inputs = read_model_inputs(context)
    chosen = folder / "fit_baselines" / GIVEN
    for name, model in baselines_of(inputs, context.config, "train", chosen).items():
        model.save(context.output / GIVEN / name)
    num_items = inputs.sizes.num_item_rows - 1
    return StageRows(rows_in=int(inputs.item_counts("train").sum()), rows_out=num_items)


def renewed_rows(context: StageContext, trained: Path) -> dict[str, NDArray[np.int64]]:
    """List rows of users' ids that have other owners than when the weights were trained."""
    owners = read_owners(context.inputs["build_features"])
    before = read_owners(trained / "build_features")
    if owners is None or before is None:
        return {}
    return {FEATURE: renewed(owners, before)}


def continue_model(context: StageContext, spec: ModelSpec) -> StageRows:
    """Continue a served model on what is new, and write it where a trained one is looked for."""
    folder, _ = weights_of(context)
    served, config = folder / "refit" / spec.name, context.config
    if not served.exists():
        return StageRows(rows_in=0, rows_out=0)
    settings, whole = config.backtest, whole_model(served.parent, spec)
    fitter = ModelFitter.of(spec, config)
    training = fitter.training.continued(settings.new_passes, settings.new_rate)
    fitter = replace(fitter, training=training)
    if isinstance(fitter.settings, SequenceConfig) and whole.parent == served:
        fitter = replace(fitter, settings=of_first(fitter.settings))
    inputs, weights = read_model_inputs(context), load_file(whole)
    for feature, rows in renewed_rows(context, folder).items():
        weights = without_rows(weights, feature, rows)
    fitted, curve = fit(
        context,
        fitter,
        Data(inputs=inputs),
        "train",
        Refit(best_step=1, num_examples=1, weights=weights),
        name=spec.name,
        note="new events",
        new=new_events(context, inputs),
    )
    write_training(context.output / GIVEN, curve, asdict(fitted.result))
    spec.write(fitted.model.eval(), context.output / GIVEN)
    steps = {"steps": fitted.result.num_steps}
    return StageRows(rows_in=fitted.num_examples, rows_out=0, more=steps)


def train_two_tower(context: StageContext) -> StageRows:
    """Continue the served two-tower on what is new."""
    return continue_model(context, TWO_TOWER)


def train_sequence(context: StageContext) -> StageRows:
    """Continue the served sequence model on what is new, all of its members."""
    return continue_model(context, SEQUENCE)


def train_generative(context: StageContext) -> StageRows:
    """Take the served generative model as it is, over a catalogue that may have grown."""
    folder, _ = base_of(context)
    served = folder / "refit" / "generative"
    if not served.exists():
        return StageRows(rows_in=0, rows_out=0)
    inputs = read_model_inputs(context)
    model = grown_generative(
        served,
        inputs,
        read_item_codes(context.inputs["build_semantic_ids"]),
        read_item_codes(folder / "build_semantic_ids"),
    )
    model.save(context.output / GIVEN / "generative")
    return StageRows(rows_in=0, rows_out=inputs.sizes.num_item_rows - 1)


def train_ranker(context: StageContext) -> StageRows:
    """Take the served ranker as it is, over a catalogue that may have grown."""
    folder, _ = base_of(context)
    for path in sorted((folder / "train_ranker").iterdir()):
        if path.is_dir():
            link_tree(path, context.output / path.name)
    served = context.output / GIVEN / RANKER
    if not served.exists():
        return StageRows(rows_in=0, rows_out=0)
    inputs = read_model_inputs(context)
    model = grown_ranker(served, inputs, renewed_rows(context, folder))
    for name in (Ranker.FILE, "config.json"):
        (served / name).unlink()
    model.save(served)
    return StageRows(rows_in=0, rows_out=inputs.sizes.num_item_rows - 1)


def refit(context: StageContext) -> StageRows:
    """Take the models as they were judged: their next training sees what was held out."""
    found = 0
    for stage in FITTED:
        for model in sorted((context.inputs[stage] / GIVEN).glob("*/")):
            link_tree(model, context.output / model.name)
            found += 1
    return StageRows(rows_in=found, rows_out=found)


OWN: dict[str, Callable[[StageContext], StageRows]] = {
    one.__name__: one
    for one in (
        build_features,
        embed_items,
        fit_baselines,
        train_two_tower,
        train_sequence,
        train_generative,
        train_ranker,
        refit,
    )
}
SKIPPED = (*CARRIED, "report", "adapt_domains")


def update_stages() -> list[Stage]:
    """List the stages of an increment, in order."""
    stages = []
    for stage in STAGES:
        if stage.name in SKIPPED:
            continue
        if stage.name not in OWN:
            stages.append(stage)
            continue
        reads = tuple(dict.fromkeys((RELEASED, *stage.reads)))
        if stage.name == "refit":
            reads = (RELEASED, *FITTED)
        sections = (*stage.sections, "backtest", "updates")
        stages.append(
            replace(stage, function=OWN[stage.name], reads=reads, sections=sections, reads_if={})
        )
    return stages
