"""Stage release: check the challenger, write it as a bundle, and publish it in one rename.

With ``release.promote = false`` it stays challenger until ``recsys release promote``.

It is checked as it was written. One that fails a check is not published: the champion stays, the
bundle is in ``bundles/refused`` to look at, and the command ends with code 3. Either way the
decision is a line of ``bundles/releases.jsonl``, signed if operators set a key.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import polars as pl

from pipelines.engine.artifacts import read_json, to_json
from pipelines.engine.stage import StageContext, StageRows
from pipelines.engine.workspace import bundles_dir, digest_of_config, publishing
from pipelines.inputs.tensors import read_inputs
from pipelines.publishing.comparison import (
    Compared,
    Metrics,
    compare,
    explain_decision,
    item_domains,
    protected_slices,
    ranked_gain,
    release_verdicts,
    served_metrics,
    served_row,
)
from pipelines.publishing.gate import Subject, bundle_verdicts
from pipelines.publishing.parts import make_parts
from pipelines.publishing.promotion import (
    note_comparison,
    note_release,
    refuse,
    served_base,
    served_version,
)
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
from pipelines.semantic_ids.store import open_id_store, publish_version
from recsys.fitting.queries import GIVEN, ModelInputs
from serving.bundle.load import Bundle, load_bundle
from serving.bundle.manifest import CURRENT, BundleManifest, Verdict, bundle_directory


def is_published(context: StageContext) -> bool:
    """True if the bundle and the IDs of this artefact are there and some bundle is served."""
    folder, document = bundles_dir(context.config), read_json(context.output / "release.json")
    version, semantic_ids = document["version"], document["semantic_ids"]
    has_ids = semantic_ids is None or open_id_store(context.config).leads_from(semantic_ids)
    kept = released_folder(context.workspace.path, version)
    places = (bundle_directory(folder, version), folder / CURRENT, kept)
    return has_ids and all(place.is_dir() for place in places)


def load_champion(folder: Path, name: str) -> tuple[BundleManifest | None, Bundle | None]:
    """Find the served release, unless it is the one of this name, and its bundle if it loads."""
    champion = served_base(folder)
    if champion is None or is_same_release(champion.version, name):
        return None, None
    with suppress(ValueError):
        return champion, load_bundle(folder / CURRENT)
    return champion, None


def compared_with(
    champion: BundleManifest | None,
    served: Bundle | None,
    metrics: Metrics,
    context: StageContext,
    inputs: ModelInputs,
) -> tuple[pl.DataFrame | None, Compared | None]:
    """Read the challenger's answers, query the champion for the same, and compare."""
    if not metrics:
        return None, None
    config, features = context.config, context.inputs["build_features"]
    run = RunEvents.load(features, inputs.sequences)
    ranks = context.inputs["evaluate"] / f"per_user_{GIVEN}_test.parquet"
    answered = build_answers(pl.read_parquet(ranks), served_row(metrics), run)
    if champion is None:
        return answered, None
    queries = same_queries(
        answered,
        run,
        bundles_dir(config),
        champion.version,
        config=config.release,
        seed=config.seed,
        loaded=served,
    )
    domains = item_domains(pl.read_parquet(features / "items.parquet"))
    slices = protected_slices(queries, inputs.item_counts("train"), domains)
    found = compare(queries, slices, config.release)
    note_comparison(champion.version, len(queries), found.decision)
    return answered, found


def written_release(
    context: StageContext,
    inputs: ModelInputs,
    checked: Sequence[Verdict],
    metrics: Metrics,
    **known: Any,
) -> WrittenRelease:
    """Write the bundle and check it; ``checked`` are verdicts on its metrics."""
    config = context.config

    def judge(candidate: Path) -> list[Verdict]:
        if not config.release.gate.enabled:
            return list(checked)
        subject = Subject(
            challenger=load_bundle(candidate),
            config=config.release.gate,
            report=read_json(context.inputs["build_features"] / "report.json"),
            now=time.time(),
            seed=config.seed,
            **known,
        )
        return [*checked, *bundle_verdicts(subject)]

    name, parts = context.making[:12], make_parts(context, inputs)
    folder, digest = bundles_dir(config), digest_of_config(config)
    try:
        return write_release(
            folder, parts, name=name, metrics=metrics, config_digest=digest, judge=judge
        )
    except ValueError as error:
        broken = Verdict(
            name="the bundle can be loaded", value=0, bound=1, passed=False, reason=str(error)
        )
        return WrittenRelease(name, "", [*checked, broken])


def release(context: StageContext) -> StageRows:
    """Write the refitted models as a bundle if every check passes, and publish it."""
    config, features = context.config, context.inputs["build_features"]
    folder = bundles_dir(config)
    folder.mkdir(parents=True, exist_ok=True)
    metrics: Metrics = read_json(context.inputs["evaluate"] / "metrics.json")[GIVEN]["test"]
    metrics = served_metrics(metrics, context.inputs["train_ranker"] / GIVEN)
    recall = read_json(context.inputs["build_index"] / "recall.json")["recall"]
    inputs = read_inputs(features, context.inputs.get("embed_items"))
    champion, served = load_champion(folder, context.making[:12])
    answered, compared = compared_with(champion, served, metrics, context, inputs)
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
            metrics,
            champion=served,
            paired=None if compared is None else compared.by,
            ranked=ranked_gain(metrics, config.release.metric, answered),
        )
        version, former = written.version, None if champion is None else champion.version
        about = {
            "champion": served_version(folder),
            "challenger_digest": written.digest or None,
            "config_digest": digest_of_config(config),
            "verdicts": [one.model_dump() for one in written.verdicts],
            "words": explain_decision(former, written.verdicts, compared),
        }
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
