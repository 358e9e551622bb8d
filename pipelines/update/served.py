"""Parts of an increment that are taken as they are: encoders, generative model, ranker, a refit."""

from __future__ import annotations

from pipelines.engine.stage import StageContext, StageRows
from pipelines.engine.workspace import RELEASED, bundles_dir
from pipelines.inputs.content_models import read_words
from pipelines.publishing.released import Released, link_tree
from pipelines.ranking.artefact import RANKER
from pipelines.semantic_ids.store import read_item_codes
from pipelines.stages.embed_items import embed_items as embed_all_items
from pipelines.update.models import read_model_inputs
from recsys.content.attribute_schema import build_extraction
from recsys.content.columns import ColumnEncoder
from recsys.fitting.grown import grown_generative, grown_ranker
from recsys.fitting.queries import GIVEN
from recsys.models.ranker.model import Ranker
from serving.bundle.items import WORDS
from serving.bundle.manifest import bundle_directory, read_manifest

FITTED = ("fit_baselines", "train_two_tower", "train_sequence", "train_generative")


def embed_items(context: StageContext) -> StageRows:
    """Encode the catalogue as that of the served bundle was."""
    base = Released.load(context.inputs[RELEASED])
    bundle = bundle_directory(bundles_dir(context.config), base.version)
    served = read_manifest(bundle)[0].content
    columns = [] if served is None else served.columns
    weight = context.config.content.column_weight
    made = None if served is None else served.enrichment
    extraction = build_extraction(context.config.enrichment.attributes)
    if made is not None and made.prompt_version != extraction.version:
        raise ValueError(
            f"the items of bundle {base.version} were described with prompt {made.prompt_version}, "
            f"enrichment.attributes now make prompt {extraction.version}; put them back, or run "
            "the whole pipeline"
        )
    words = read_words(context.config.content, bundle / WORDS)
    return embed_all_items(context, ColumnEncoder.of(columns, weight), words)


def train_generative(context: StageContext) -> StageRows:
    """Take the served generative model as it is, over a catalogue that may have grown."""
    folder = context.inputs[RELEASED]
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
    for path in sorted((context.inputs[RELEASED] / "train_ranker").iterdir()):
        if path.is_dir():
            link_tree(path, context.output / path.name)
    served = context.output / GIVEN / RANKER
    if not served.exists():
        return StageRows(rows_in=0, rows_out=0)
    inputs = read_model_inputs(context)
    model = grown_ranker(served, inputs)
    for name in (Ranker.FILE, "config.json"):
        (served / name).unlink()
    model.save(served)
    return StageRows(rows_in=0, rows_out=inputs.sizes.num_item_rows - 1)


def refit(context: StageContext) -> StageRows:
    """Take the models as they were judged; their next training sees the held-out events."""
    found = 0
    for stage in FITTED:
        for model in sorted((context.inputs[stage] / GIVEN).glob("*/")):
            link_tree(model, context.output / model.name)
            found += 1
    return StageRows(rows_in=found, rows_out=found)
