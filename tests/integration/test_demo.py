import io
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console, RenderableType

from pipelines.cli.demo_results import (
    SPLIT_NAMES,
    choose_users,
    describe_ranker,
    metric_table,
    next_steps,
    served_model,
    user_tables,
)
from pipelines.evaluation.analysis import Analysis
from pipelines.pages.wording import MODELS
from serving.recommend import Recommender

MIRROR = os.environ.get("RECSYS_DATA_MIRROR")


def printed(*parts: RenderableType) -> list[str]:
    console = Console(file=io.StringIO(), width=100, highlight=False)
    for part in parts:
        console.print(part)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_demo_shows_metrics_histories_and_what_to_do_next(shop: Path) -> None:
    metrics = json.loads((shop / "evaluate/metrics.json").read_text())["given"]
    analysis = Analysis.load(shop / "evaluate").orders["given"]
    bundle = shop / "bundles/current"
    lines = printed(
        *(
            metric_table(SPLIT_NAMES[split], metrics[split], "ndcg@10", analysis=analysis[split])
            for split in ("validation", "test")
        ),
        *user_tables(bundle),
        next_steps(shop, bundle, 1.0),
    )
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 100
    assert "…" not in text
    for split in ("validation", "test"):
        assert set(metrics[split]) <= set(MODELS)
        for model in metrics[split]:
            mean, low, high, _ = analysis[split].models[model].intervals["ndcg@10"]
            assert metrics[split][model]["ndcg@10"] == pytest.approx(mean)
            assert f"{mean:.3f} ({low:.3f}-{high:.3f})" in text
            assert f"{metrics[split][model]['recall@10']:.3f}" in text
    recommender = Recommender.load(bundle)
    for row in choose_users(recommender.bundle.users.offsets):
        user_id = recommender.bundle.users.user_ids[row]
        assert f"User {user_id}" in text
        assert recommender.recommend([user_id], k=1)["display_text"][0] in text
    assert "curl" in text


def test_metrics_are_shown_without_intervals_where_none_were_made(shop: Path) -> None:
    metrics = json.loads((shop / "evaluate/metrics.json").read_text())["given"]["test"]
    served = served_model(metrics, has_ranker=False)
    text = "\n".join(printed(metric_table("Test", metrics, "ndcg@10", served=served)))
    assert "blend (fast) (served)" in text
    assert f"{metrics['blend']['ndcg@10']:.3f} " in text
    assert "-0." not in text


def test_demo_names_what_is_served_and_why(shop: Path, tmp_path: Path) -> None:
    metrics = json.loads((shop / "evaluate/metrics.json").read_text())["given"]["test"]
    ranked = {**metrics, "ranked": metrics["blend"]}
    served = served_model(ranked, has_ranker=True)
    text = "\n".join(printed(metric_table("Test", ranked, "ndcg@10", served=served)))
    assert text.count("(served)") == text.count("ranked (served)") == 1
    path = tmp_path / "told.json"
    assert describe_ranker(path) is None
    path.write_text('{"served": false, "reason": "it is behind"}')
    assert describe_ranker(path) == "The blend's order is served: it is behind."


# Four minutes on two quiet cores, twice that beside other tests.
@pytest.mark.timeout(1_500)
@pytest.mark.mirror
@pytest.mark.slow
def test_movielens_from_raw_files_to_a_bundle(
    recsys: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not MIRROR:
        pytest.skip("needs real data sets: RECSYS_DATA_MIRROR=FOLDER make test")
    monkeypatch.setenv("RECSYS_DATA_MIRROR", MIRROR)
    settings = ["two_tower_training.max_steps=100", "content.encoder=hash"]
    settings += ["sequence_training.max_steps=100", "generative_training.max_steps=50"]
    options = [part for one in settings for part in ("--set", one)]
    result = recsys("run", "--preset", "movielens_100k", "-w", tmp_path / "run", "-q", *options)
    assert result.exit_code == 0, result.output
    ids = json.loads((tmp_path / "run/build_semantic_ids/semantic_ids_report.json").read_text())
    assert ids["num_with_id"] == ids["num_items"] > 1600
    assert ids["quality"]["collisions_after"] == 0
    assert all(level["utilisation"] >= 0.95 for level in ids["quality"]["levels"])
    metrics = json.loads((tmp_path / "run/evaluate/metrics.json").read_text())["given"]["test"]
    assert metrics["item_to_item"]["ndcg@10"] > 0.085
    assert metrics["blend"]["ndcg@10"] > metrics["popularity"]["ndcg@10"]
    shown = recsys("recommend", "-b", tmp_path / "run", "--session", "50,172", "--k", "10")
    assert "Star Wars" not in shown.output
    assert "Return of the Jedi (1983)" in shown.output
