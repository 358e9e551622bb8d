"""Contents of a new bundle, from a run's artefacts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from pipelines.candidates.blends import TEXT_SEARCH, served_blends
from pipelines.engine.stage import StageContext
from pipelines.publishing.items import content_source, content_words, take_properties
from pipelines.ranking.artefact import RANKER, served_ranker
from pipelines.searching.texts import item_texts, read_described
from pipelines.semantic_ids.store import read_version
from recsys.fitting.queries import GIVEN, ModelInputs
from recsys.models.names import BY_NAME, TWO_TOWER
from recsys.models.text_search.search import TextSearch
from recsys.models.text_search.tokens import ItemText
from serving.bundle.catalogue import Catalogue
from serving.bundle.history_models import BLENDS
from serving.bundle.item_index import TwoTowerParts
from serving.bundle.users import Users
from serving.bundle.write import BundleParts


def make_parts(context: StageContext, inputs: ModelInputs) -> BundleParts:
    """Gather what a request needs from the artefacts."""
    features = context.inputs["build_features"]
    items, found = read_described(features, context.inputs["enrich_items"])
    users = pl.read_parquet(features / "vocabularies" / "users.parquet").sort("row")
    categories = pl.read_parquet(features / "vocabularies" / "categories.parquet").sort("row")
    sequences, catalogue = inputs.sequences, inputs.catalogue
    semantic_ids, index = context.inputs["build_semantic_ids"], context.inputs["build_index"]
    models = saved_models(context)
    if (search := text_search(context, item_texts(items, found))) is not None:
        models[TEXT_SEARCH] = search
    two_tower = None
    if TWO_TOWER.name in models:
        vectors = np.load(index / "item_vectors.npy", allow_pickle=False)
        two_tower = TwoTowerParts(index=index / "items.faiss", item_vectors=vectors)
    return BundleParts(
        catalogue=Catalogue.from_lists(
            item_ids=items["item_id"].to_list(),
            display_texts=items["display_text"].fill_null("").to_list(),
            category_names=categories["id"].to_list(),
            category_values=catalogue.categories.values.numpy(),
            category_offsets=catalogue.categories.offsets.numpy(),
        ),
        properties=take_properties(items),
        users=Users.from_lists(
            user_ids=users["id"].to_list(),
            features=inputs.user_features,
            item_rows=np.asarray(sequences.item_rows),
            offsets=np.asarray(sequences.offsets),
            times=None if sequences.times is None else np.asarray(sequences.times),
            types=None if sequences.event_types is None else np.asarray(sequences.event_types),
            negative=None if sequences.negative is None else np.asarray(sequences.negative),
        ),
        models=models,
        specs={
            name: address
            for name, address in context.config.outside_models().items()
            if name in models
        },
        content=catalogue.content.numpy(),
        words=content_words(context),
        content_source=content_source(context),
        two_tower=two_tower,
        semantic_ids=semantic_ids if read_version(semantic_ids) else None,
        user_features=inputs.sizes.user_features,
        context_features=inputs.sizes.context_features,
        event_types=inputs.sizes.event_types,
        exclude_history=context.config.evaluation.exclude_history,
    )


def saved_models(context: StageContext) -> dict[str, Path]:
    """Locate the refitted models, the ranker and the blends that are served, by name."""
    refit, outside = context.inputs["refit"], context.config.outside_models()
    found = {name: refit / name for name in (*BY_NAME, *outside) if (refit / name).exists()}
    blends = served_blends(context.inputs["fit_blend"] / GIVEN)
    found |= {BLENDS[profile]: path for profile, path in blends.items()}
    if (ranker := served_ranker(context.inputs["train_ranker"] / GIVEN)) is not None:
        found[RANKER] = ranker
    return found


def text_search(context: StageContext, texts: Sequence[ItemText]) -> Path | None:
    """Locate the text search, extended to items that came after it was fitted."""
    fitted = context.inputs["fit_blend"] / GIVEN / TEXT_SEARCH
    if not fitted.exists():
        return None
    search = TextSearch.load(fitted)
    if len(texts) + 1 == search.num_item_rows:
        return fitted
    search.extended([text.text for text in texts]).save(context.output / TEXT_SEARCH)
    return context.output / TEXT_SEARCH
