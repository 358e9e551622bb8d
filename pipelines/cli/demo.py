"""``recsys demo``: MovieLens-100K from raw files to something a person can read and serve."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
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
from pipelines.cli.tracking import recorder_of
from pipelines.engine.console import log, out
from pipelines.engine.runner import StageOutcome, run_stages
from pipelines.engine.workspace import bundles_dir
from pipelines.evaluation.analysis import Analysis, SplitAnalysis
from pipelines.inputs.tensors import released_order
from pipelines.presets.resolve import check_places, resolve, with_dataset
from pipelines.ranking.artefact import FILE, RANKED
from pipelines.stages.list import STAGES
from pipelines.stages.release import read_json
from pipelines.stages.report import report_path
from recsys.evaluation.bootstrap import Interval
from serving.bundle.load import load_bundle
from serving.bundle.manifest import CURRENT
from serving.recommend import Recommender

PRESET = "movielens_100k"
METRICS = ("recall@10", "ndcg@10", "recall@50", "mrr@10")
MODEL_NAMES = {
    "popularity": "popularity",
    "item_to_item": "item-to-item",
    "content": "content",
    "two_tower": "two-tower",
    "sequence": "sequence",
    "ensemble": "sequence, all members",
    "generative": "generative",
    "blend_fast": "blend, fast",
    "blend": "blend, full",
    "ranked": "blend, fast, then ranked",
}
SHOWN_USERS = 3
SHOWN_ITEMS = 8
TITLE_WIDTH = 44
SPLIT_NAMES = {"validation": ("second last", "(validation)"), "test": ("last", "(test)")}
"""Lines that name a split in the table."""

Metrics = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Value by split, model and metric."""


def metric_table(
    metrics: Metrics, analysis: Mapping[str, SplitAnalysis], primary: str, *, ranked: bool = False
) -> Table:
    """Lay out each model's metrics on both splits; the best of each split is bold.

    Args:
        metrics: By split, model and metric.
        analysis: By split; empty where none was made, and then no interval is shown.
        primary: Metric that is shown with its interval.
        ranked: Whether the ranker's order is served, else the fast blend's.
    """
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("held-out item", no_wrap=True)
    table.add_column("model", no_wrap=True)
    shown = [name for name in METRICS if name in metrics["test"]["blend"]]
    for name in shown:
        table.add_column(name, justify="right", no_wrap=True)
    for split, readable_split in SPLIT_NAMES.items():
        models = {name: text for name, text in MODEL_NAMES.items() if name in metrics[split]}
        served = RANKED if ranked else BLEND_FAST if BLEND_FAST in models else BLEND
        models[served] += " (served)"
        best = {name: max(metrics[split][model][name] for model in models) for name in shown}
        for place, (model, readable) in enumerate(models.items()):
            values = metrics[split][model]
            known = analysis[split].models[model].intervals if split in analysis else {}
            cells = [
                Text(
                    with_interval(values[name], known.get(name) if name == primary else None),
                    style="bold" if values[name] == best[name] else "",
                )
                for name in shown
            ]
            table.add_row("".join(readable_split[place : place + 1]), readable, *cells)
        table.add_section()
    return table


def with_interval(value: float, interval: Interval | None) -> str:
    """Write a metric as ``0.141 (0.132-0.150)``, or alone where no interval is known."""
    around = "" if interval is None else f" ({interval.low:.3f}-{interval.high:.3f})"
    return f"{value:.3f}{around}"


def shortened(text: str, width: int = TITLE_WIDTH) -> str:
    """Cut a title to the width of its column."""
    return text if len(text) <= width else text[: width - 3].rstrip() + "..."


def user_table(user_id: str, history: list[str], recommended: list[str]) -> Table:
    """Put a user's latest items beside what is recommended."""
    table = Table(box=box.SIMPLE_HEAD, title=f"User {user_id}", title_justify="left")
    table.add_column("watched lately", no_wrap=True, width=TITLE_WIDTH)
    table.add_column("recommended", no_wrap=True, width=TITLE_WIDTH)
    rows = max(len(history), len(recommended))
    for place in range(rows):
        left = shortened(history[place]) if place < len(history) else ""
        right = shortened(recommended[place]) if place < len(recommended) else ""
        table.add_row(Text(left), Text(right))
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
    """Show the most watched item's semantic ID beside the likest popular one; None without IDs."""
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
    beside = int(np.lexsort((-counts, -shared))[0])
    named = [
        f"{shortened(catalogue.display_texts[row], 28)} is {ids.text(row)}"
        for row in (shown, beside)
    ]
    return f"Alike by semantic ID: {named[0]}, {named[1]}."


def ranker_line(told: Path) -> str | None:
    """Say whose order is served and by how much; None where no ranker was trained."""
    if not told.exists():
        return None
    found = read_json(told)
    served = "The ranker's order is served" if found["served"] else "The blend's order is served"
    return f"{served}, as validation says: {found['reason']}."


def adapter_lines(told: Path) -> list[str]:
    """Say what became of each domain's adapter."""
    lines = []
    for one in read_json(told):
        if one["adapter"] is None:
            lines.append(f"Domain {one['domain']}: answered by the base; {one['refused']}")
            continue
        (metric,) = one["metrics"]["base"]
        before, after = (one["metrics"][name][metric] for name in ("base", "adapter"))
        lines.append(
            f"Domain {one['domain']}: an adapter answers requests whose context names it; "
            f"{metric} of held-out users {before:.3f}, {after:.3f} with it."
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
        f"serve it      recsys serve{option}",
        """              curl -s --json '{"user_id": "1", "k": 5}' localhost:8000/v1/recommend""",
        """              the same with "context": {"domain": "classics"} asks its adapter""",
        "your data     recsys run --config shop.toml   (see recsys run --help)",
    ]
    return Panel(Group(*(Text(line) for line in lines)), title="Next", title_align="left")


def run_demo(
    workspace: Path | None,
    *,
    show_progress: bool,
    finished: Callable[[StageOutcome], None],
) -> None:
    """Run the preset's stages and show what came out."""
    begin = time.perf_counter()
    out.print(Text("MovieLens-100K, from raw files to a bundle that can be served", style="bold"))
    config = resolve(preset=PRESET, workspace=workspace)
    check_places(config)
    config = with_dataset(config)
    log.print(f"data: {config.data.events}", style="dim", soft_wrap=True)
    run_stages(
        STAGES,
        config,
        show_progress=show_progress,
        recorder=recorder_of(config),
        finished=finished,
    )
    seconds = time.perf_counter() - begin

    order = released_order(config.workspace / "build_features")
    evaluated = config.workspace / "evaluate"
    metrics: dict[str, Any] = read_json(evaluated / "metrics.json")
    analysis = Analysis.load(evaluated)
    bundle = bundles_dir(config) / CURRENT
    out.print()
    out.print("All items are ranked for each user; targets are the user's own last two items.")
    out.print("In brackets: where the mean may lie with other users like these (95%).")
    ranked = load_bundle(bundle).ranker is not None
    primary = analysis.primary_metric
    out.print(metric_table(metrics[order], analysis.orders[order], primary, ranked=ranked))
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
