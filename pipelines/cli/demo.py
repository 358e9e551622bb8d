"""``recsys demo``: MovieLens-100K from raw files to something a person can read and serve."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pipelines.candidates.blends import BLEND, BLEND_FAST
from pipelines.cli.first_look import FirstModels, first_lists, first_metrics
from pipelines.cli.tracking import tracked
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import read_json
from pipelines.engine.console import log, out
from pipelines.engine.runner import StageOutcome, run_stages
from pipelines.engine.workspace import bundles_dir
from pipelines.evaluation.analysis import Analysis, SplitAnalysis
from pipelines.inputs.tensors import released_order
from pipelines.pages.wording import MODELS
from pipelines.presets.resolve import check_places, resolve, with_dataset
from pipelines.ranking.artefact import FILE, RANKED
from pipelines.stages.list import STAGES
from pipelines.stages.report import report_path
from recsys.evaluation.bootstrap import Interval
from serving.bundle.load import load_bundle
from serving.bundle.manifest import CURRENT
from serving.recommend import Recommender

PRESET = "movielens_100k"
METRICS = ("recall@10", "ndcg@10", "recall@50", "mrr@10")
FIRST_LOOK_AFTER = "train_two_tower"
"""The stage after which there is something to show."""
SHOWN_USERS = 3
SHOWN_ITEMS = 8
TITLE_WIDTH = 44
SPLIT_NAMES = {
    "validation": "Second-last item of each user (validation)",
    "test": "Last item of each user (test)",
}

Metrics = Mapping[str, Mapping[str, float]]
"""Value by model and metric, of one split."""


def metric_table(
    title: str,
    metrics: Metrics,
    primary: str,
    *,
    analysis: SplitAnalysis | None = None,
    served: str | None = None,
) -> Table:
    """Lay out each model's metrics on one split; the best of each column is bold.

    Args:
        title: Names the split.
        metrics: By model and metric.
        primary: Metric that is shown with its interval.
        analysis: Holds the intervals; None shows none.
        served: The model whose lists are served.
    """
    models = [name for name in MODELS if name in metrics]
    shown = [name for name in METRICS if name in metrics[models[0]]]
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("model", no_wrap=True)
    for name in shown:
        interval = " (95% interval)" if analysis is not None and name == primary else ""
        table.add_column(name + interval, justify="right", no_wrap=True)
    best = {name: max(metrics[model][name] for model in models) for name in shown}
    for model in models:
        known = {} if analysis is None else analysis.models[model].intervals
        values = [
            Text(
                with_interval(metrics[model][name], known.get(name) if name == primary else None),
                style="bold" if metrics[model][name] == best[name] else "",
            )
            for name in shown
        ]
        table.add_row(MODELS[model] + (" (served)" if model == served else ""), *values)
    return table


def served_model(metrics: Metrics, *, has_ranker: bool) -> str:
    """Name the model whose lists are served in profile ``fast``."""
    if has_ranker:
        return RANKED
    return BLEND_FAST if BLEND_FAST in metrics else BLEND


def with_interval(value: float, interval: Interval | None) -> str:
    """Write a metric as ``0.141 (0.132-0.150)``, or alone where no interval is known."""
    around = "" if interval is None else f" ({interval.low:.3f}-{interval.high:.3f})"
    return f"{value:.3f}{around}"


def shortened(text: str, width: int = TITLE_WIDTH) -> str:
    """Cut a title to the width of its column."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def user_table(
    user_id: str, history: list[str], recommended: list[str], *, recommended_by: str = ""
) -> Table:
    """Put a user's latest items beside what is recommended."""
    by = f" ({recommended_by})" if recommended_by else ""
    table = Table(box=box.SIMPLE_HEAD, title=f"User {user_id}{by}", title_justify="left")
    table.add_column("watched lately", no_wrap=True, width=TITLE_WIDTH)
    table.add_column("recommended", no_wrap=True, width=TITLE_WIDTH)
    for left, right in zip_longest(history, recommended, fillvalue=""):
        table.add_row(Text(shortened(left)), Text(shortened(right)))
    return table


def histories_and_lists(bundle: Path) -> list[Table]:
    """Ask the bundle for a few users, spread over the histories' lengths."""
    recommender = Recommender.load(bundle)
    users, catalogue = recommender.bundle.users, recommender.bundle.catalogue
    tables = []
    for row in chosen_users(users.offsets):
        user_id = users.user_ids[row]
        reply = recommender.recommend([user_id], k=SHOWN_ITEMS)
        latest = users.history(row)[::-1][:SHOWN_ITEMS]
        history = [catalogue.display_texts[int(item)] for item in latest]
        tables.append(user_table(user_id, history, reply["display_text"].to_list()))
    return tables


def semantic_id_line(bundle: Path) -> str | None:
    """Show the semantic IDs of the most watched item and of one that shares most of it."""
    loaded = load_bundle(bundle)
    ids, catalogue = loaded.semantic_ids, loaded.catalogue
    if ids is None or ids.source.num_with_id < 2:
        return None
    counts = np.bincount(loaded.users.item_rows, minlength=catalogue.num_item_rows)
    counts[ids.id_rows == 0] = -1
    shown = int(counts.argmax())
    codes = ids.codes.numpy()
    shared = (codes == codes[shown]).cumprod(axis=1).sum(axis=1)
    shared[ids.id_rows == 0] = -1
    shared[shown] = -1
    similar = int(np.lexsort((-counts, -shared))[0])
    named = [
        f"{shortened(catalogue.display_texts[row], 28)} is {ids.text(row)}"
        for row in (shown, similar)
    ]
    return f"Similar by semantic ID: {named[0]}, {named[1]}."


def ranker_line(path: Path) -> str | None:
    """Say whose order is served and by how much; None where no ranker was trained."""
    if not path.exists():
        return None
    found = read_json(path)
    served = "The ranker's order is served" if found["served"] else "The blend's order is served"
    return f"{served}: {found['reason']}."


def adapter_lines(path: Path) -> list[str]:
    """Say what became of each domain's adapter, and against what it was judged."""
    lines = []
    for one in read_json(path):
        (metric,) = one["metrics"]["base"]
        base, before, after, whole = (
            one["metrics"][name][metric]
            for name in ("base", "base_within_domain", "adapter_within_domain", "adapter")
        )
        outcome = (
            "the base answers, its adapter was refused by the harm gate"
            if one["adapter"] is None
            else "an adapter answers requests whose context names it"
        )
        lines.append(
            f"Domain {one['domain']}: {outcome}; {metric} of held-out users over its items alone: "
            f"base {before:.3f}, adapter {after:.3f} (over the whole catalogue {base:.3f} and "
            f"{whole:.3f})."
        )
    return lines


def chosen_users(offsets: NDArray[np.int64]) -> list[int]:
    """Choose users with short, middling and long histories, always the same ones."""
    lengths = np.diff(offsets)
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    places = np.linspace(0.25, 0.75, SHOWN_USERS) * (len(order) - 1)
    return [int(order[int(place)]) for place in places]


def where_things_are(workspace: Path, bundle: Path, seconds: float) -> Panel:
    """Say where the files are and what to type next."""
    default = resolve(preset=PRESET).workspace
    option = "" if workspace == default else f" --bundle {bundle}"
    lines = [
        f"took          {seconds:,.0f} s",
        f"artefacts     {workspace}/<stage>/, each with its manifest.json",
        f"report        {report_path(workspace)} (open it in a browser)",
        f"metrics       {workspace}/evaluate/metrics.json, per user in per_user_*.parquet",
        f"bundle        {bundle}",
        "",
        f"ask it        recsys recommend --user 1{option}",
        f"              recsys recommend --session 50,172 --k 5{option}",
        f"serve it      recsys serve --expose-users --allow-admin{option}",
        """              curl -s --json '{"user_id": "1", "k": 5}' localhost:8000/v1/recommend""",
        """              "context": {"domain": "classics"} has its adapter answer, if it has one""",
        "your data     recsys run --config shop.toml   (see recsys run --help)",
    ]
    return Panel(Group(*(Text(line) for line in lines)), title="Next", title_align="left")


def show_first_look(config: RunConfig, seconds: float) -> None:
    """Print what the first models recommend, long before the run is done."""
    models = FirstModels.load(config.workspace)
    users = chosen_users(models.inputs.sequences.offsets)
    out.print()
    title = f"First look after {seconds:.0f} s: baselines and the two-tower, validation"
    out.print(metric_table(title, first_metrics(models, config), config.evaluation.primary_metric))
    for one in first_lists(models, config.workspace / "build_features", users, SHOWN_ITEMS):
        out.print(user_table(*one, recommended_by="two-tower alone, before the blend"))


def show_results(config: RunConfig, seconds: float) -> None:
    """Print metrics of both splits, what is served and why, lists, and what to do next."""
    order = released_order(config.workspace / "build_features")
    evaluated = config.workspace / "evaluate"
    metrics: dict[str, Any] = read_json(evaluated / "metrics.json")[order]
    analysis = Analysis.load(evaluated)
    bundle = bundles_dir(config) / CURRENT
    served = served_model(metrics["validation"], has_ranker=load_bundle(bundle).ranker is not None)
    out.print()
    out.print("All items are ranked for each user, without those of the user's history.")
    for split, title in SPLIT_NAMES.items():
        out.print(
            metric_table(
                title,
                metrics[split],
                analysis.primary_metric,
                analysis=analysis.orders[order].get(split),
                served=served,
            )
        )
    notes = [ranker_line(config.workspace / "train_ranker" / order / FILE)]
    for note in [*notes, *adapter_lines(config.workspace / "adapt_domains" / "adapters.json")]:
        if note is not None:
            out.print(note, markup=False, soft_wrap=True)
            out.print()
    for table in histories_and_lists(bundle):
        out.print(table)
    if (line := semantic_id_line(bundle)) is not None:
        out.print(line, markup=False)
        out.print()
    out.print(where_things_are(config.workspace, bundle, seconds))


def run_demo(
    workspace: Path | None,
    *,
    show_progress: bool,
    finished: Callable[[StageOutcome], None],
) -> None:
    """Run the preset's stages; show a first look on the way and what came out at the end."""
    begin = time.perf_counter()
    out.print(Text("MovieLens-100K, from raw files to a bundle that can be served", style="bold"))
    config = resolve(preset=PRESET, workspace=workspace)
    check_places(config)
    config = with_dataset(config)
    log.print(f"data: {config.data.events}", style="dim", soft_wrap=True)

    def after(outcome: StageOutcome) -> None:
        finished(outcome)
        looks = config.two_tower_training.enabled and outcome.stage == FIRST_LOOK_AFTER
        if looks and not outcome.skipped:
            show_first_look(config, time.perf_counter() - begin)

    with tracked(config) as recorder:
        run_stages(STAGES, config, show_progress=show_progress, recorder=recorder, finished=after)
    show_results(config, time.perf_counter() - begin)
