"""The queries of two sides joined, their metrics by user, and their slices, by known answers."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.dashboard.data.answers import DEPTH, side
from pipelines.dashboard.data.pairs import Pairs, join
from pipelines.dashboard.query import NotFoundError
from pipelines.dashboard.workspaces.run import Run
from tests.pipelines.dashboard.planted import Model, world, write_features, write_workspace

TABLE = "evaluate/per_user_given_test.parquet"


def run_of(path: Path, kind: str = "workspace") -> Run:
    return Run(key=path.name, name=path.name, kind=kind, status="complete", time=None, path=path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("runs")
    known = world(7, num_users=300)
    write_features(known, folder / "features")
    for name, seed in (("first", 1), ("second", 2)):
        models = {"blend": Model(seed=seed), "ease": Model(seed=seed + 10)}
        write_workspace(folder / name, known, models, features=folder / "features")
    write_workspace(folder / "other", world(8, num_users=200), {"blend": Model(seed=3)})
    return {path.name: run_of(path) for path in folder.iterdir() if path.name != "features"}


def test_runs_of_the_same_data_share_every_query(runs):
    sides = [side(runs["first"]), side(runs["second"], "ease")]
    found, known = join(sides), world(7, num_users=300)
    assert (len(found), found.num_users, found.num_answered) == (300, 300, (300, 300))
    for place, one in enumerate(sides):
        raw = pl.read_parquet(one.run.path / TABLE)[f"rank_{one.model}"].to_numpy()
        assert found.queries[f"rank{place}"].to_list() == np.where(raw <= DEPTH, raw, 0).tolist()
    assert found.queries["place"].to_list() == (known.lengths - 1).tolist()
    assert found.queries["time"].to_list() == known.times[known.offsets[2:] - 1].tolist()


def test_slices_are_those_of_the_log(runs):
    found, known = join([side(runs["first"])] * 2).slices, world(7, num_users=300)
    activity = found.get("user_activity")
    assert activity["new"].tolist() == known.new_users.tolist()
    assert activity["heavy"].tolist() == known.heavy_users.tolist()
    books = found.get("category")["books"]
    assert books.tolist() == known.target_category("books").tolist()
    both = found.get("category x user_activity")["books x new"]
    assert both.tolist() == (books & known.new_users).tolist()
    assert {*found.single} >= {"item_popularity", "domain", "period", "recency"}
    assert sum(one.sum() for one in found.get("period").values()) == 300


def test_queries_that_differ_are_left_out(runs):
    found = join([side(runs["first"]), side(runs["other"])])
    worlds = (world(7, num_users=300), world(8, num_users=200))
    first, second = (list(zip(one.targets, one.lengths, strict=True)) for one in worlds)
    assert len(found) == sum(one == other for one, other in zip(first, second, strict=False))
    assert found.num_answered == (300, 200)


def test_bundles_are_joined_by_the_ids_of_their_answers(tmp_path):
    rows = [("a", "x", 3, 1), ("a", "y", 3, None), ("b", "x", 5, 200), ("c", "z", 1, 2)]
    others = [("a", "x", 3, 4), ("a", "y", 3, 7), ("b", "x", 6, 2), ("d", "z", 1, 2)]
    schema = {"user_id": pl.String, "item_id": pl.String, "place": pl.Int64, "rank": pl.Int64}
    for version, answers in (("v1", rows), ("v2", others)):
        (tmp_path / f"bundle-{version}").mkdir()
        table = pl.DataFrame(answers, schema=schema, orient="row")
        table.write_parquet(tmp_path / f"answers-{version}.parquet")
    found = join([side(run_of(tmp_path / f"bundle-{one}", "bundle")) for one in ("v1", "v2")])
    assert found.num_users == 1
    assert found.queries.select("rank0", "rank1").rows() == [(1, 4), (0, 7)]


def test_a_users_items_of_one_slice_are_one_value():
    ranks = {"rank0": [1, 0, 2, 0, 5, 0], "rank1": [1, 1, 0, 0, 5, 1]}
    queries = pl.DataFrame({"user_id": list("aabbbc"), **ranks})
    pairs = Pairs(sides=(), queries=queries, num_answered=(6, 6), features=None)
    left = np.array([1, 0, 1, 1, 0, 0], bool)
    assert pairs.values(0, "recall@10", left).tolist() == [1, 0.5]
    assert pairs.values(1, "recall@10", left).tolist() == [1, 0]
    assert pairs.values(1, "recall@10", ~left).tolist() == [1, 1, 1]
    assert pairs.values(0, "recall@10").tolist() == pytest.approx([1 / 2, 2 / 3, 0])


def test_a_torn_table_is_refused_and_a_run_without_test_shows_validation(tmp_path):
    path = write_workspace(tmp_path / "early", world(9, num_users=50), {"blend": Model(seed=1)})
    before = join([side(run_of(path))] * 2)
    (path / TABLE).rename(path / TABLE.replace("test", "validation"))
    found = join([side(run_of(path))] * 2)
    assert (before.split, found.split) == ("test", "validation")
    assert (found.queries["place"] < before.queries["place"]).all()
    table = path / TABLE.replace("test", "validation")
    chosen = side(run_of(path))
    table.write_bytes(table.read_bytes()[:500])
    with pytest.raises(NotFoundError, match="cannot be read"):
        join([chosen, chosen])
