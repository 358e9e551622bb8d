"""Results of a run on the terminal: metrics of every model, the served list, next commands."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from features.schema import GIVEN
from pipelines.cli.output import Cell, make_table, print_lines
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import read_json
from pipelines.engine.console import log
from pipelines.engine.workspace import bundles_dir
from pipelines.inputs.tensors import split_kind
from pipelines.pages.wording import MODELS
from pipelines.publishing.comparison import served_metrics, served_row
from pipelines.ranking.artefact import FILE
from serving.bundle.manifest import CURRENT

SHOWN_USERS, SHOWN_ITEMS, TITLE_WIDTH = 3, 8, 44
METRICS = ("recall@10", "ndcg@10", "recall@50", "mrr@10")
Metrics = Mapping[str, Mapping[str, float]]
"""Value by model and metric, on one split."""


def metric_table(title: str, metrics: Metrics, served: str) -> Table:
    """Tabulate each model's metrics on one split; the best of each column is bold."""
    models = [name for name in MODELS if name in metrics]
    shown = [name for name in METRICS if name in metrics[models[0]]]
    best = {name: max(metrics[model][name] for model in models) for name in shown}
    rows: list[list[Cell]] = []
    for model in models:
        values = [(metrics[model][name], best[name]) for name in shown]
        cells = [Text(f"{own:.3f}", style="bold" if own == top else "") for own, top in values]
        rows.append([MODELS[model] + (" (served)" if model == served else ""), *cells])
    heads = ("model", *(f">{name}" for name in shown))
    return make_table(heads, rows, title=title, fixed=("model",))


def user_tables(bundle: Path) -> list[Table]:
    """Ask the bundle for users with short, middling and long histories, always the same ones."""
    from serving.recommend import Recommender

    recommender = Recommender.load(bundle)
    users, catalogue = recommender.bundle.users, recommender.bundle.catalogue
    lengths = np.diff(users.offsets)
    order = np.argsort(lengths, kind="stable")[(lengths == 0).sum() :]
    places = np.linspace(0.25, 0.75, SHOWN_USERS) * (len(order) - 1)
    tables, heads = [], ("lately", "recommended")
    for row in dict.fromkeys(order[places.astype(int)].tolist() if len(order) else []):
        lists = recommender.recommend([users.user_ids[row]], k=SHOWN_ITEMS)
        latest = users.history(row)[::-1][:SHOWN_ITEMS]
        lately = [catalogue.display_texts[int(item)] for item in latest]
        rows = [
            [shorten(text, TITLE_WIDTH, placeholder="...") for text in pair]
            for pair in zip_longest(lately, lists["display_text"], fillvalue="")
        ]
        tables.append(make_table(heads, rows, title=f"User {users.user_ids[row]}", fixed=heads))
    return tables


def print_results(config: RunConfig) -> None:
    """Print metrics on held-out events, the served model, lists of three users, next commands."""
    workspace, built = config.workspace, config.workspace / "build_features"
    path = workspace / "evaluate" / "metrics.json"
    if not path.exists() or not (bundles_dir(config) / CURRENT).exists():
        return
    if metrics := read_json(path)[GIVEN]["test"]:
        ranker = workspace / "train_ranker" / GIVEN
        made: Mapping[str, Any] = read_json(ranker / FILE) if (ranker / FILE).exists() else {}
        served = served_row(served_metrics(metrics, ranker))
        what = "Last event of each user"
        if split_kind(built) == "global_time":
            what = "Events after the moment of the split"
        title = f"{what}, full catalogue (test)"
        log.print(metric_table(title, metrics, served))
        if reason := made.get("reason"):
            print_lines(f"{'ranker' if made['served'] else 'blend'} served: {reason}", note=True)
    else:
        print_lines("nothing was measured, because no user has a held-out event", note=True)
    for table in user_tables(bundles_dir(config) / CURRENT):
        log.print(table)
    print_lines(
        f"ask it:   recsys recommend {workspace} --user <id>",
        f"serve it: recsys serve {workspace}",
        note=True,
    )
