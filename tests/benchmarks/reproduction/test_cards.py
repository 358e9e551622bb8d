"""A card of a generated world, run by the command's own functions."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pipelines.datasets.fetch import fetch
from pipelines.datasets.registry import DATASETS, Dataset, FileLayout, find_dataset
from tests.benchmarks.recipes.prepare import events_digest
from tests.benchmarks.reproduction.__main__ import main
from tests.benchmarks.reproduction.card import (
    Band,
    Card,
    Minutes,
    card_names,
    read_card,
    read_published,
)
from tests.benchmarks.reproduction.run import check_data
from tests.benchmarks.reproduction.summary import published_rows
from tests.recsys.testing.tables import tiny_tables

ROOT = Path(__file__).parents[3]


def result(order, seed, recall, split="test"):
    metrics = {"recall@10": recall, "ndcg@10": recall / 2}
    return {
        "data_set": "walks",
        "data_digest": "d" * 16,
        "recipe": "r" * 12,
        "order": order,
        "seed": seed,
        "splits": ["validation", "test"] if split == "test" else ["validation"],
        "device": "CPU",
        "seconds": 30.0,
        "invalid_ids": 0.0,
        "rows": {"sequence": {"validation": metrics, split: metrics}},
    }


@pytest.fixture
def card():
    return Card(
        title="Walks <test>",
        preset="amazon_beauty",
        data_digest="d" * 16,
        minutes=Minutes(gpu=1, cpu=2),
        published="walks",
        rows=("sequence",),
        goals={"sequence": {"recall@10": 0.5}},
        expected=(Band(row="sequence", metric="recall@10", mean=0.40, tolerance=0.02),),
    )


@pytest.mark.parametrize("name", card_names())
def test_every_card_of_the_package_builds_its_configuration(name):
    card = read_card(name)
    assert card.config(Path("runs/x")).data.dataset == card.data_set()
    if card.published is not None:
        others = (published_rows(card, read_published(), run_here=here) for here in (False, True))
        assert any(others)


def test_other_data_are_refused_with_both_digests(card):
    with pytest.raises(ValueError, match=r"eeee.*dddd"):
        check_data("e" * 16, card, "walks")


CARD = """
title = "A generated world"
preset = "shop"
data_digest = "{digest}"
seeds = [0, 1]
rows = ["popularity", "item_to_item", "content_similarity"]
minutes = {{ gpu = 0.1, cpu = 0.1 }}

[overrides.data]
dataset = "synthetic-tiny"

[overrides.content]
encoder = "hash"

[[expected]]
row = "popularity"
metric = "recall@10"
mean = {mean}
tolerance = 0.001
"""


def write_card(path, digest, mean):
    path.write_text(CARD.format(digest=digest, mean=mean))
    return str(path)


@pytest.fixture(scope="module")
def tiny_digest(tmp_path_factory):
    mirror = tmp_path_factory.mktemp("mirror")
    (mirror / "synthetic-tiny").mkdir()
    world = FileLayout(name="world", files={}, parse=lambda _: tiny_tables())
    made = Dataset(name="synthetic-tiny", description="", terms="", preset="shop", mirror=world)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(DATASETS, "synthetic-tiny", made)
        patch.setenv("RECSYS_DATA_MIRROR", str(mirror))
        patch.setenv("RECSYS_DATA_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield events_digest(fetch(find_dataset("synthetic-tiny")).table("events"))


def test_a_card_runs_from_data_to_page_and_fails_out_of_band(tiny_digest, tmp_path, capsys):
    card = write_card(tmp_path / "tiny.toml", tiny_digest, mean=0.999)
    arguments = [card, "--folder", str(tmp_path / "run"), "--device", "cpu"]
    assert main(arguments) == 3
    said = capsys.readouterr().err
    assert "popularity recall@10 (given order) is" in said
    assert "expected 0.9980 to 1.0000" in said
    document = json.loads((tmp_path / "run" / "results.json").read_text())
    assert document["seeds"] == [0, 1]
    assert len((tmp_path / "run" / "runs" / "ledger.jsonl").read_text().splitlines()) == 2
    assert "A generated world" in (tmp_path / "run" / "results.md").read_text()

    # With the band where the number is, the same runs pass without being run again.
    mean = document["orders"]["given"]["popularity"]["recall@10"]["mean"]
    results = sorted((tmp_path / "run" / "runs").glob("*/result.json"))
    before = [path.stat().st_mtime_ns for path in results]
    write_card(tmp_path / "tiny.toml", tiny_digest, mean=mean)
    assert main(arguments) == 0
    assert [path.stat().st_mtime_ns for path in results] == before


def test_arrays_prepared_from_a_card_run_with_recsys_alone(tiny_digest, tmp_path):
    card = write_card(tmp_path / "tiny.toml", tiny_digest, mean=0.5)
    arguments = [card, "--folder", str(tmp_path / "run")]
    assert main([*arguments, "--prepare", str(tmp_path / "arrays")]) == 0
    # No module of the pipelines' side may load, as where these packages are not installed.
    program = (
        "import sys\n"
        "for name in ('polars', 'pydantic', 'typer', 'faiss', 'mlflow', 'rich'):\n"
        "    sys.modules[name] = None\n"
        "from tests.benchmarks.reproduction.train import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    runs = tmp_path / "run" / "runs"
    command = [sys.executable, "-c", program, str(tmp_path / "arrays"), "--out", str(runs)]
    ran = subprocess.run(
        [*command, "--seeds", "0", "1", "--device", "cpu"], capture_output=True, text=True, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stderr
    # Results made elsewhere are taken as the card's own: the same data and recipe.
    before = (runs / "given-1" / "result.json").stat().st_mtime_ns
    assert main([*arguments, "--device", "cpu"]) == 3
    assert (runs / "given-1" / "result.json").stat().st_mtime_ns == before
