"""Results of ``recsys demo``: metrics, the lists of a few users, and what to type next."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from pipelines.candidates.blends import BLEND, BLEND_FAST, RANKED
from pipelines.cli.output import make_table, print_lines
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import read_json
from pipelines.engine.console import out
from pipelines.engine.workspace import bundles_dir
from pipelines.evaluation.analysis import Analysis, SplitAnalysis
from pipelines.inputs.tensors import released_order
from pipelines.pages.wording import MODELS
from pipelines.presets.resolve import resolve
from pipelines.ranking.artefact import FILE
from pipelines.stages.report import report_path
from serving.bundle.load import load_bundle
from serving.bundle.manifest import CURRENT
from serving.recommend import Recommender

PRESET = "movielens_100k"
METRICS = ("recall@10", "ndcg@10", "recall@50", "mrr@10")
SHOWN_USERS = 3
SHOWN_ITEMS = 8
TITLE_WIDTH = 44
SPLIT_NAMES = {
    "validation": "Second-last item of each user (validation)",
    "test": "Last item of each user (test)",
}

Metrics = Mapping[str, Mapping[str, float]]
"""Value by model and metric, on one split."""


def metric_table(
    title: str,
    metrics: Metrics,
    primary: str,
    *,
    analysis: SplitAnalysis | None = None,
    served: str | None = None,
) -> Table:
    """Tabulate each model's metrics on one split; the best of each column is bold."""
    models = [name for name in MODELS if name in metrics]
    shown = [name for name in METRICS if name in metrics[models[0]]]
    best = {name: max(metrics[model][name] for model in models) for name in shown}
    rows = []
    for model in models:
        known = {} if analysis is None else analysis.models[model].intervals
        cells = [Text(MODELS[model] + (" (served)" if model == served else ""))]
        for name in shown:
            value, interval = metrics[model][name], known.get(name) if name == primary else None
            around = "" if interval is None else f" ({interval.low:.3f}-{interval.high:.3f})"
            cells.append(Text(f"{value:.3f}{around}", style="bold" if value == best[name] else ""))
        rows.append(cells)
    of = {} if analysis is None else {primary: " (95% interval)"}
    heads = ("model", *(f">{name}{of.get(name, '')}" for name in shown))
    return make_table(heads, rows, title=title, fixed=("model",))


def served_model(metrics: Metrics, *, has_ranker: bool) -> str:
    """Return the model whose lists are served in profile ``fast``."""
    if has_ranker:
        return RANKED
    return BLEND_FAST if BLEND_FAST in metrics else BLEND


def user_tables(bundle: Path) -> list[Table]:
    """Ask the bundle for a few users, spread over the histories' lengths."""
    recommender = Recommender.load(bundle)
    users, catalogue = recommender.bundle.users, recommender.bundle.catalogue
    tables = []
    for row in choose_users(users.offsets):
        user_id = users.user_ids[row]
        reply = recommender.recommend([user_id], k=SHOWN_ITEMS)["display_text"].to_list()
        latest = users.history(row)[::-1][:SHOWN_ITEMS]
        history = [catalogue.display_texts[int(item)] for item in latest]
        rows = [
            [shorten(text, TITLE_WIDTH, placeholder="...") for text in pair]
            for pair in zip_longest(history, reply, fillvalue="")
        ]
        heads = ("watched lately", "recommended")
        tables.append(make_table(heads, rows, title=f"User {user_id}", fixed=heads))
    return tables


def choose_users(offsets: NDArray[np.int64]) -> list[int]:
    """Choose users with short, middling and long histories, always the same ones."""
    lengths = np.diff(offsets)
    order = np.argsort(lengths, kind="stable")
    order = order[lengths[order] > 0]
    places = np.linspace(0.25, 0.75, SHOWN_USERS) * (len(order) - 1)
    return [int(order[int(place)]) for place in places]


def describe_ranker(path: Path) -> str | None:
    """Describe whose order is served and why; None if no ranker was trained."""
    if not path.exists():
        return None
    found = read_json(path)
    served = "The ranker's order is served" if found["served"] else "The blend's order is served"
    return f"{served}: {found['reason']}."


def next_steps(workspace: Path, bundle: Path, seconds: float) -> Panel:
    """Describe where the files are and what to type next."""
    run = "" if workspace == resolve(preset=PRESET).workspace else f" {workspace}"
    lines = [
        f"took          {seconds:,.0f} s",
        f"artefacts     {workspace}/<stage>/, each with its manifest.json",
        f"report        {report_path(workspace)} (open it in a browser)",
        f"metrics       {workspace}/evaluate/metrics.json, per user in per_user_*.parquet",
        f"bundle        {bundle}",
        "",
        f"ask it        recsys recommend{run} --user 1",
        f"              recsys recommend{run} --session 50,172 --k 5",
        f"serve it      recsys serve{run} --expose-users --allow-admin",
        """              curl -s --json '{"user_id": "1", "k": 5}' localhost:8000/v1/recommend""",
        """              "context": {"domain": "classics"} has its adapter answer, if it has one""",
        "your data     recsys data init events.csv items.csv, then recsys run shop.toml",
    ]
    return Panel(Text("\n".join(lines)), title="Next", title_align="left")


def print_results(config: RunConfig, seconds: float) -> None:
    """Print metrics of both splits, the served order and its reason, lists, and next steps."""
    order = released_order(config.workspace / "build_features")
    evaluated = config.workspace / "evaluate"
    metrics: dict[str, Any] = read_json(evaluated / "metrics.json")[order]
    analysis = Analysis.load(evaluated)
    bundle = bundles_dir(config) / CURRENT
    served = served_model(metrics["validation"], has_ranker=load_bundle(bundle).ranker is not None)
    print_lines("", "All items are ranked for each user, without those of the user's history.")
    for split, title in SPLIT_NAMES.items():
        intervals = analysis.orders[order].get(split)
        primary = analysis.primary_metric
        out.print(metric_table(title, metrics[split], primary, analysis=intervals, served=served))
    if note := describe_ranker(config.workspace / "train_ranker" / order / FILE):
        print_lines(note, "")
    for table in user_tables(bundle):
        out.print(table)
    out.print(next_steps(config.workspace, bundle, seconds))
