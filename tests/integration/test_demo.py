import io
import json
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from rich.console import Console, RenderableType

from pipelines.cli.demo import (
    SPLIT_NAMES,
    adapter_lines,
    chosen_users,
    histories_and_lists,
    metric_table,
    ranker_line,
    semantic_id_line,
    served_model,
    show_first_look,
    where_things_are,
)
from pipelines.engine import console
from pipelines.evaluation.analysis import Analysis
from pipelines.pages.wording import MODELS
from pipelines.presets.resolve import resolve
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
        *histories_and_lists(bundle),
        where_things_are(shop, bundle, 1.0),
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
    for row in chosen_users(recommender.bundle.users.offsets):
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


def test_a_first_look_is_shown_before_the_run_is_done(
    shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Console(file=io.StringIO(), width=100, highlight=False)
    monkeypatch.setattr("pipelines.cli.demo.out", page)
    show_first_look(resolve(shop.parent / "shop.toml", workspace=shop), 12.3)
    assert isinstance(page.file, io.StringIO)
    text = page.file.getvalue()
    assert max(map(len, text.splitlines())) <= console.WIDTH
    assert "First look after 12 s" in text
    best = json.loads((shop / "train_two_tower/given/training.json").read_text())["best_metric"]
    assert f"{best:.3f}" in next(line for line in text.splitlines() if "two-tower  " in line)
    assert text.count("two-tower alone") == 3


def test_demo_names_what_is_served_and_why(shop: Path, tmp_path: Path) -> None:
    metrics = json.loads((shop / "evaluate/metrics.json").read_text())["given"]["test"]
    ranked = {**metrics, "ranked": metrics["blend"]}
    served = served_model(ranked, has_ranker=True)
    text = "\n".join(printed(metric_table("Test", ranked, "ndcg@10", served=served)))
    assert text.count("(served)") == text.count("ranked (served)") == 1
    path = tmp_path / "told.json"
    assert ranker_line(path) is None
    path.write_text('{"served": false, "reason": "it is behind"}')
    assert ranker_line(path) == "The blend's order is served: it is behind."
    values = {"base": 0.1, "base_within_domain": 0.2, "adapter_within_domain": 0.25}
    metric = {name: {"ndcg@10": value} for name, value in (values | {"adapter": 0.15}).items()}
    adapters = [
        {"domain": "a", "adapter": "adapter-1", "refused": None, "metrics": metric},
        {"domain": "b", "adapter": None, "refused": "no gain", "metrics": metric},
    ]
    path.write_text(json.dumps(adapters))
    first, second = adapter_lines(path)
    assert "over its items alone: base 0.200, adapter 0.250" in first
    assert "over the whole catalogue 0.100 and 0.150" in first
    assert second.startswith("Domain b: the base answers, its adapter was refused by the harm gate")


def test_demo_shows_two_items_whose_semantic_ids_begin_alike(shop: Path) -> None:
    line = semantic_id_line(shop / "bundles/current")
    assert line is not None
    catalogue = Recommender.load(shop / "bundles/current").bundle.catalogue
    texts = [catalogue.display_texts[row] for row in range(1, catalogue.num_item_rows)]
    titles = [text for text in texts if f" {text} is " in line]
    assert len(titles) == 2
    first, second = re.findall(r"is (\d+(?:-\d+)+)", line)
    assert first != second
    assert first.split("-")[0] == second.split("-")[0]
    assert len(line) <= 100


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
