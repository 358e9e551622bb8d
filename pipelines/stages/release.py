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

import polars as pl

from pipelines.engine.artifacts import read_json, to_json
from pipelines.engine.console import log
from pipelines.engine.stage import StageContext, StageRows
from pipelines.engine.workspace import bundles_dir, digest_of_config, publishing
from pipelines.inputs.tensors import read_inputs, released_order
from pipelines.publishing.comparison import (
    Compared,
    Metrics,
    compare,
    item_domains,
    protected_slices,
    release_verdicts,
    served_metrics,
    served_row,
)
from pipelines.publishing.explain import explain_decision, record_power, refuse
from pipelines.publishing.gate.gate import bundle_verdicts
from pipelines.publishing.gate.subject import Subject
from pipelines.publishing.parts import make_parts
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
    repeatable,
    write_release,
)
from pipelines.semantic_ids.artefact import open_id_store, publish_version
from recsys.fitting.queries import ModelInputs
from serving.bundle.load import Bundle, load_bundle
from serving.bundle.manifest import CURRENT, BundleManifest, Verdict, bundle_directory


def make_name(making: str) -> str:
    """Build a release's name from its inputs: equal inputs give the same name."""
    return making[:12]


def is_published(context: StageContext) -> bool:
    """True if the bundle and the IDs of this artefact are there and some bundle is served."""
    folder, document = bundles_dir(context.config), read_json(context.output / "release.json")
    version, semantic_ids = document["version"], document["semantic_ids"]
    has_ids = semantic_ids is None or open_id_store(context.config).leads_from(semantic_ids)
    kept = released_folder(context.workspace.path, version)
    places = (bundle_directory(folder, version), folder / CURRENT, kept)
    return has_ids and all(place.is_dir() for place in places)


def answers(context: StageContext, metrics: Metrics, inputs: ModelInputs) -> pl.DataFrame | None:
    """Read the ranks that the served list gives to the test queries; None without any."""
    if not metrics:
        return None
    ranks, features = f"per_user_{inputs.tie_order}_test.parquet", context.inputs["build_features"]
    table = pl.read_parquet(context.inputs["evaluate"] / ranks)
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
    slices = protected_slices(queries, inputs.item_counts("train"), domains)
    found = compare(queries, slices, config.release)
    log.print(
        f"champion {champion.version} on the same {len(queries)} queries: {found.decision}",
        style="dim",
    )
    return found


def champion_bundle(folder: Path) -> Bundle | None:
    """Load the served bundle; None without one, or if it is damaged."""
    try:
        return load_bundle(folder / CURRENT) if (folder / CURRENT).exists() else None
    except ValueError:
        return None


def written_release(
    context: StageContext, inputs: ModelInputs, checked: Sequence[Verdict], **known: Any
) -> WrittenRelease:
    """Write the bundle and check it; ``checked`` are verdicts on its metrics."""
    config = context.config

    def judge(candidate: Path) -> list[Verdict]:
        if not config.release.gate.enabled:
            return list(checked)
        subject = Subject(
            challenger=load_bundle(candidate),
            config=config.release.gate,
            metric=config.release.metric,
            report=read_json(context.inputs["build_features"] / "report.json"),
            workspace=context.workspace.path,
            now=time.time(),
            seed=config.seed,
            **known,
        )
        return [*checked, *bundle_verdicts(subject)]

    name, parts = make_name(context.making), make_parts(context, inputs)
    folder, metrics, digest = bundles_dir(config), known["metrics"], digest_of_config(config)
    try:
        return write_release(
            folder, parts, name=name, metrics=metrics, config_digest=digest, judge=judge
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
        "power": record_power(compared, context.config.release.deciding_metric),
        "words": explain_decision(served, written.verdicts, compared),
    }


def release(context: StageContext) -> StageRows:
    """Write the refitted models as a bundle if every check passes, and publish it."""
    config, features = context.config, context.inputs["build_features"]
    order, folder = released_order(features), bundles_dir(config)
    folder.mkdir(parents=True, exist_ok=True)
    metrics: Metrics = read_json(context.inputs["evaluate"] / "metrics.json")[order]["test"]
    metrics = served_metrics(metrics, context.inputs["train_ranker"] / order)
    recall = read_json(context.inputs["build_index"] / "recall.json")["recall"]
    inputs = read_inputs(features, context.inputs.get("embed_items"), order)
    answered = answers(context, metrics, inputs)
    champion = served_base(folder)
    if champion is not None and is_same_release(champion.version, make_name(context.making)):
        # It is this one.
        champion = None
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
            inputs,
            verdicts,
            champion=served,
            metrics=metrics,
            served=served_row(metrics) if metrics else "",
            paired=None if compared is None else compared.by,
            answered=answered,
        )
        about, version = about_release(context, written, champion, compared), written.version
        if not written.passed:
            refuse(folder, version, **about)
        if answered is not None:
            write_answers(folder, version, answered)
        trained = not config.updates.counts_only
        keep_released(context.workspace, version, context.inputs, trained=trained)
        semantic_ids = publish_version(context.inputs["build_semantic_ids"], open_id_store(config))
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
