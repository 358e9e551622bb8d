"""Stage release: check the challenger, write it as a bundle, and publish it in one rename.

With ``release.promote = false`` it stays challenger until ``recsys release promote``.

It is checked as it was written. One that fails a check is not published: the champion stays, the
bundle is in ``bundles/refused`` to look at, and the command ends with code 3. Either way the
decision is a line of ``bundles/releases.jsonl``, signed if operators set a key.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from pipelines.candidates.blends import TEXT_SEARCH, served_blends
from pipelines.engine.artifacts import plain, read_json, to_json
from pipelines.engine.console import log
from pipelines.engine.errors import RefusedError
from pipelines.engine.signing import signing_key
from pipelines.engine.stage import StageContext, StageRows
from pipelines.engine.workspace import bundles_dir, digest_of_config, publishing
from pipelines.inputs.tensors import read_inputs, released_order
from pipelines.publishing.comparison import (
    Compared,
    Metrics,
    compare,
    item_domains,
    release_verdicts,
    served_row,
)
from pipelines.publishing.explain import lines_of, power_of, words_of
from pipelines.publishing.gate.gate import bundle_verdicts
from pipelines.publishing.gate.subject import Subject
from pipelines.publishing.promotion import note_release, served_base, served_version
from pipelines.publishing.released import (
    bounds_for,
    champion_metrics,
    keep_released,
    released_folder,
)
from pipelines.publishing.same_queries import (
    RunEvents,
    build_answers,
    same_queries,
    standard_error,
    write_answers,
)
from pipelines.publishing.write_release import (
    WrittenRelease,
    is_same_release,
    item_properties,
    repeatable,
    write_release,
)
from pipelines.ranking.artefact import RANKED, served_ranker
from pipelines.searching.texts import item_texts
from pipelines.semantic_ids.artefact import read_version
from pipelines.stages.build_semantic_ids import publish_version, store_of
from pipelines.tracking.decisions import Decision, append_decision
from recsys.fitting.queries import ModelInputs
from recsys.models import names
from recsys.models.text_search.search import TextSearch
from serving.bundle.catalogue import Catalogue
from serving.bundle.load import Bundle, load_bundle
from serving.bundle.manifest import (
    CURRENT,
    BundleManifest,
    ContentSource,
    EnrichmentSource,
    Verdict,
    bundle_directory,
)
from serving.bundle.properties import Properties
from serving.bundle.retriever import TwoTowerParts
from serving.bundle.semantic_ids import SemanticIdParts
from serving.bundle.users import Users
from serving.bundle.write import BundleParts, OutsideParts


def name_of(making: str) -> str:
    """Build a release's name from its inputs: equal inputs give the same name."""
    return making[:12]


def is_published(context: StageContext) -> bool:
    """True if the bundle and the IDs of this artefact are there and some bundle is served."""
    folder = bundles_dir(context.config)
    document = read_json(context.output / "release.json")
    directory, semantic_ids = (
        bundle_directory(folder, document["version"]),
        document["semantic_ids"],
    )
    has_ids = semantic_ids is None or store_of(context.config).leads_from(semantic_ids)
    kept = released_folder(context.workspace.path, document["version"]).is_dir()
    return directory.is_dir() and (folder / CURRENT).is_dir() and has_ids and kept


def champion_of(folder: Path, challenger: str) -> BundleManifest | None:
    """Read the manifest of the published bundle; None without one, or if it is this one."""
    base = served_base(folder)
    return None if base is None or is_same_release(base.version, challenger) else base


def answers(context: StageContext, metrics: Metrics, inputs: ModelInputs) -> pl.DataFrame | None:
    """Read the ranks that the served list gives to the test queries; None without any."""
    if not metrics:
        return None
    order, features = inputs.tie_order, context.inputs["build_features"]
    table = pl.read_parquet(context.inputs["evaluate"] / f"per_user_{order}_test.parquet")
    return build_answers(table, served_row(metrics), RunEvents.load(features, inputs.sequences))


def compared_with(
    champion: BundleManifest,
    loaded: Bundle | None,
    answered: pl.DataFrame,
    context: StageContext,
    inputs: ModelInputs,
) -> Compared:
    """Query the champion for what the challenger answered, and compare."""
    config, features = context.config, context.inputs["build_features"]
    queries = same_queries(
        answered,
        RunEvents.load(features, inputs.sequences),
        bundles_dir(config),
        champion.version,
        config=config.release,
        seed=config.seed,
        loaded=loaded,
    )
    domains = item_domains(pl.read_parquet(features / "items.parquet"))
    found = compare(queries, inputs.item_counts("train"), config.release, domains)
    log.print(
        f"champion {champion.version} on the same {len(queries)} queries: {found.decision}",
        style="dim",
    )
    return found


def content_source(context: StageContext) -> ContentSource:
    """Describe how items were encoded, so that appended items are encoded equally."""
    config = context.config
    made = read_json(context.inputs["embed_items"] / "content.json")
    enrichment = None
    if made["described_by"] is not None:
        settings = plain(config.enrichment)
        enrichment = EnrichmentSource(settings=settings, **made["described_by"])
    return ContentSource(
        encoder=config.content.encoder,
        text_columns=list(config.content.text_columns),
        settings=plain(config.content),
        table={
            "columns": dict(config.data.item_columns),
            "separator": config.data.separator,
            "list_separator": config.data.list_separator,
        },
        name=made["encoder"],
        columns=made["columns"],
        images=made["images"],
        enrichment=enrichment,
    )


def present(directory: Path) -> Path | None:
    """Return a model's folder, None where the model was not fitted."""
    return directory if directory.exists() else None


def properties_of(items: pl.DataFrame) -> Properties:
    """Take what filters can read of the catalogue, and report what they cannot."""
    found, left_out = item_properties(items)
    for name, why in left_out.items():
        log.print(f"item column {name} cannot be filtered by: {why}", style="dim")
    return found


def text_search(context: StageContext, order: str, items: pl.DataFrame) -> Path | None:
    """Locate the text search, extended to items that came after it was fitted."""
    fitted = present(context.inputs["fit_blend"] / order / TEXT_SEARCH)
    if fitted is None:
        return None
    search = TextSearch.load(fitted)
    more = [text.text for text in item_texts(items)[search.num_item_rows - 1 :]]
    if not more:
        return fitted
    search.grown(more).save(context.output / TEXT_SEARCH)
    return context.output / TEXT_SEARCH


def make_parts(context: StageContext, inputs: ModelInputs) -> BundleParts:
    """Gather what a request needs from the artefacts."""
    features = context.inputs["build_features"]
    items = pl.read_parquet(features / "items.parquet").sort("item_row")
    users = pl.read_parquet(features / "vocabularies" / "users.parquet").sort("row")
    categories = pl.read_parquet(features / "vocabularies" / "categories.parquet").sort("row")
    sequences = inputs.sequences
    semantic_ids, index = context.inputs["build_semantic_ids"], context.inputs["build_index"]
    refit, order = context.inputs["refit"], released_order(features)
    return BundleParts(
        catalogue=Catalogue.from_lists(
            item_ids=items["item_id"].to_list(),
            display_texts=items["display_text"].fill_null("").to_list(),
            category_names=categories["id"].to_list(),
            category_values=inputs.catalogue.categories.values.numpy(),
            category_offsets=inputs.catalogue.categories.offsets.numpy(),
        ),
        properties=properties_of(items),
        users=Users.from_lists(
            user_ids=users["id"].to_list(),
            features=inputs.user_features,
            item_rows=np.asarray(sequences.item_rows),
            offsets=np.asarray(sequences.offsets),
            times=None if sequences.times is None else np.asarray(sequences.times),
        ),
        popularity=refit / names.POPULARITY.name,
        item_weights={name: refit / name for name in names.ITEM_WEIGHTS if (refit / name).exists()},
        content=inputs.catalogue.content.numpy(),
        content_source=content_source(context),
        two_tower=TwoTowerParts(
            model=refit / names.TWO_TOWER.name,
            index=index / "items.faiss",
            item_vectors=np.load(index / "item_vectors.npy", allow_pickle=False),
        )
        if (refit / names.TWO_TOWER.name).exists()
        else None,
        semantic_ids=SemanticIdParts(directory=semantic_ids)
        if read_version(semantic_ids)
        else None,
        content_similarity=present(refit / names.CONTENT.name),
        sequence=present(refit / names.SEQUENCE.name),
        ensemble=present(refit / names.ENSEMBLE.name),
        generative=present(refit / names.GENERATIVE.name),
        outside={
            name: OutsideParts(refit / name, address)
            for name, address in context.config.outside_models().items()
            if (refit / name).exists()
        },
        blends=served_blends(context.inputs["fit_blend"] / order),
        ranker=served_ranker(context.inputs["train_ranker"] / order),
        text_search=text_search(context, order, items),
        user_features=inputs.sizes.user_features,
        context_features=inputs.sizes.context_features,
        exclude_history=context.config.evaluation.exclude_history,
    )


def refuse(folder: Path, decision: Decision) -> None:
    """Append a refusal to the log and raise it.

    Raises:
        RefusedError: Always; names each failed check with its value and bound, and what to do.
    """
    append_decision(folder, decision, signing_key())
    current = folder / CURRENT
    kept = f"{current.resolve().name} goes on serving" if current.exists() else "nothing is served"
    raise RefusedError(
        f"the new bundle is refused and was not published; {kept}.\n"
        + "\n".join(f"  {line}" for line in lines_of(decision.failed))
        + f"\nAll verdicts: recsys release explain {folder} {decision.challenger}. The "
        "bounds are in [release] and [release.gate]."
    )


def champion_bundle(folder: Path) -> Bundle | None:
    """Load the served bundle; None without one, or if it is damaged."""
    try:
        return load_bundle(folder / CURRENT) if (folder / CURRENT).exists() else None
    except ValueError:
        return None


def written_release(
    context: StageContext, parts: BundleParts, checked: Sequence[Verdict], **known: Any
) -> WrittenRelease:
    """Write the bundle and check it; ``checked`` are verdicts on its metrics."""
    config = context.config
    folder, gate = bundles_dir(config), config.release.gate

    def judge(candidate: Path) -> list[Verdict]:
        if not gate.enabled:
            return list(checked)
        subject = Subject(
            challenger=load_bundle(candidate),
            config=gate,
            metric=config.release.metric,
            report=read_json(context.inputs["build_features"] / "report.json"),
            workspace=context.workspace.path,
            now=time.time(),
            seed=config.seed,
            **known,
        )
        return [*checked, *bundle_verdicts(subject)]

    name = name_of(context.making)
    try:
        return write_release(
            folder,
            parts,
            name=name,
            metrics=known["metrics"],
            config_digest=digest_of_config(config),
            judge=judge,
        )
    except ValueError as error:
        broken = Verdict(
            name="the bundle can be loaded", value=0, bound=1, passed=False, reason=str(error)
        )
        return WrittenRelease(name, "", [*checked, broken])


def about_release(
    context: StageContext,
    written: WrittenRelease,
    champion: BundleManifest | None,
    compared: Compared | None,
) -> dict[str, Any]:
    """Build the fields of the decision on a written bundle."""
    served = None if champion is None else champion.version
    return {
        "champion": served_version(bundles_dir(context.config)),
        "challenger_digest": written.digest or None,
        "config_digest": digest_of_config(context.config),
        "verdicts": [one.model_dump() for one in written.verdicts],
        "power": power_of(compared, context.config.release.compared_by),
        "words": words_of(served, written.verdicts, compared),
    }


def release(context: StageContext) -> StageRows:
    """Write the refitted models as a bundle if every check passes, and publish it."""
    config, order = context.config, released_order(context.inputs["build_features"])
    folder, name = bundles_dir(config), name_of(context.making)
    folder.mkdir(parents=True, exist_ok=True)
    metrics: Metrics = read_json(context.inputs["evaluate"] / "metrics.json")[order]["test"]
    if served_ranker(context.inputs["train_ranker"] / order) is None:
        # Checks are on the served list.
        metrics = {name: values for name, values in metrics.items() if name != RANKED}
    recall = read_json(context.inputs["build_index"] / "recall.json")["recall"]
    inputs = read_inputs(context.inputs["build_features"], context.inputs.get("embed_items"), order)
    answered, champion = answers(context, metrics, inputs), champion_of(folder, name)
    served = None if champion is None else champion_bundle(folder)
    compared = None
    if champion is not None and answered is not None:
        compared = compared_with(champion, served, answered, context, inputs)
    num_users = 0 if answered is None else answered["user_id"].n_unique()
    bounds = bounds_for(config.release, context.workspace.path, num_users)
    before = champion_metrics(context.workspace.path, folder, champion, metrics)
    error = standard_error(answered, bounds.depth)
    verdicts = release_verdicts(metrics, recall, before, bounds, compared, error)

    with publishing(folder):
        written = written_release(
            context,
            make_parts(context, inputs),
            verdicts,
            champion=served,
            metrics=metrics,
            served=served_row(metrics) if metrics else "",
            paired=None if compared is None else compared.by,
            answered=answered,
        )
        about, version = about_release(context, written, champion, compared), written.version
        if not written.passed:
            refuse(folder, Decision(outcome="refused", challenger=version, **about))
        if answered is not None:
            write_answers(folder, version, answered)
        trained = not config.updates.counts_only
        keep_released(context.workspace, version, context.inputs, trained=trained)
        semantic_ids = publish_version(context.inputs["build_semantic_ids"], store_of(config))
        alias = note_release(folder, version, promoted=config.release.promote, **about)
    document = {
        "version": version,
        "digest": written.digest,
        "alias": alias,
        "semantic_ids": semantic_ids,
        "verdicts": [one.model_dump() for one in repeatable(written.verdicts)],
    }
    (context.output / "release.json").write_text(to_json(document))
    return StageRows(rows_in=len(metrics), rows_out=inputs.sizes.num_item_rows - 1)
