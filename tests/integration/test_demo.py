import json
import os
from pathlib import Path

import pytest

from pipelines.cli.results import print_results
from pipelines.engine.console import log
from pipelines.pages.wording import MODELS
from pipelines.presets.resolve import resolve
from tests.integration.copies import Recsys

MIRROR = os.environ.get("RECSYS_DATA_MIRROR")


def test_a_run_ends_with_its_metrics_what_is_served_and_what_to_type_next(shop: Path) -> None:
    metrics = json.loads((shop / "evaluate/metrics.json").read_text())["given"]["test"]
    assert set(metrics) <= set(MODELS)
    with log.capture() as shown:
        print_results(resolve(shop.parent / "shop.toml", workspace=shop))
    text = shown.get()
    assert max(map(len, text.splitlines())) <= 100
    for model in metrics:
        line = next(one for one in text.splitlines() if one.strip().startswith(MODELS[model]))
        assert f"{metrics[model]['ndcg@10']:.3f}" in line
    assert text.count("(served)") == 1
    assert "recsys recommend" in text


# A minute or two on two quiet cores, much more beside other tests.
@pytest.mark.timeout(1_500)
@pytest.mark.mirror
@pytest.mark.slow
def test_movielens_from_raw_files_to_a_bundle(
    recsys: Recsys, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not MIRROR:
        pytest.skip("needs real data sets: RECSYS_DATA_MIRROR=FOLDER make test")
    monkeypatch.setenv("RECSYS_DATA_MIRROR", MIRROR)
    settings = ["tracking.enabled=false", "content.encoder=hash"]
    settings += ["evaluation.max_users=300", "search.meaning_words=200", "blend.max_queries=300"]
    settings += ["blend.recent_demand=false", "ranker_training.max_queries=500"]
    settings += ["adapter.max_epochs=0.1"]
    steps = {"two_tower": 100, "sequence": 100, "generative": 10, "ranker": 25}
    settings += [f"{name}_training.max_steps={count}" for name, count in steps.items()]
    options = [part for one in settings for part in ("--set", one)]
    result = recsys("run", tmp_path / "run", "--preset", "movielens_100k", "-q", *options)
    assert result.exit_code == 0, result.output
    ids = json.loads((tmp_path / "run/build_semantic_ids/semantic_ids_report.json").read_text())
    assert ids["num_with_id"] == ids["num_items"] > 1600
    assert ids["quality"]["collisions_after"] == 0
    assert all(level["utilisation"] >= 0.95 for level in ids["quality"]["levels"])
    metrics = json.loads((tmp_path / "run/evaluate/metrics.json").read_text())["given"]["test"]
    assert metrics["item_to_item"]["ndcg@10"] > 0.1
    assert metrics["blend"]["ndcg@10"] > metrics["popularity"]["ndcg@10"]
    shown = recsys("recommend", tmp_path / "run", "--session", "50,172", "--k", "10")
    assert "Star Wars" not in shown.output
    assert "Return of the Jedi (1983)" in shown.output
