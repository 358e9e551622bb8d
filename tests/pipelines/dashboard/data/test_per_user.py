"""The queries of runs and bundles, and which of them several have in common."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from pipelines.dashboard.data.answers import DEPTH, join, side
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


def test_runs_of_the_same_data_share_every_query(runs: dict[str, Run]) -> None:
    sides = [side(runs["first"]), side(runs["second"], "ease")]
    found = join(sides)
    assert len(found) == found.num_users == 300
    assert [one.words for one in found.dropped] == ["", ""]
    for one, ranks in zip(sides, found.ranks, strict=True):
        raw = pl.read_parquet(one.run.path / TABLE)[f"rank_{one.model}"].to_numpy()
        assert ranks.tolist() == np.where(raw <= DEPTH, raw, 0).tolist()
    known = world(7, num_users=300)
    assert found.places.tolist() == (known.lengths - 1).tolist()
    assert found.times.tolist() == known.times[known.offsets[2:] - 1].tolist()


def test_queries_that_differ_are_dropped_with_the_reason(runs: dict[str, Run]) -> None:
    sides = [side(runs["first"]), side(runs["other"])]
    found = join(sides)
    worlds = (world(7, num_users=300), world(8, num_users=200))
    first, second = (list(zip(one.targets, one.lengths, strict=True)) for one in worlds)
    same = sum(one == other for one, other in zip(first, second, strict=False))
    assert len(found) == same
    assert found.dropped[0].num_queries == 300
    assert found.dropped[0].reasons["of users that are not in all"] == 100
    assert "of users that are not in all" in found.dropped[0].words
    assert sum(found.dropped[1].reasons.values()) == 200 - same


def test_bundles_are_joined_by_the_ids_of_their_answers(tmp_path: Path) -> None:
    rows = [("a", "x", 3, 1), ("a", "y", 3, None), ("b", "x", 5, 200), ("c", "z", 1, 2)]
    others = [("a", "x", 3, 4), ("a", "y", 3, 7), ("b", "x", 6, 2), ("d", "z", 1, 2)]
    schema = {"user_id": pl.String, "item_id": pl.String, "place": pl.Int64, "rank": pl.Int64}
    for version, answers in (("v1", rows), ("v2", others)):
        (tmp_path / f"bundle-{version}").mkdir()
        table = pl.DataFrame(answers, schema=schema, orient="row")
        table.write_parquet(tmp_path / f"answers-{version}.parquet")
    bundles = [run_of(tmp_path / f"bundle-{version}", "bundle") for version in ("v1", "v2")]
    found = join([side(one) for one in bundles])
    assert found.num_users == 1
    assert sorted(zip(*(ranks.tolist() for ranks in found.ranks), strict=True)) == [(0, 7), (1, 4)]
    assert found.dropped[0].words == (
        "1 of users that are not in all, 1 after another number of events"
    )


def test_a_table_that_is_torn_is_said_in_words(tmp_path: Path) -> None:
    path = write_workspace(tmp_path / "torn", world(9, num_users=50), {"blend": Model(seed=1)})
    chosen = side(run_of(path))
    table = path / TABLE
    table.write_bytes(table.read_bytes()[:500])
    with pytest.raises(NotFoundError, match="cannot be read"):
        join([chosen, chosen])


def test_a_run_without_test_shows_validation(tmp_path: Path) -> None:
    path = write_workspace(tmp_path / "early", world(9, num_users=50), {"blend": Model(seed=1)})
    before = join([side(run_of(path))] * 2)
    (path / TABLE).rename(path / TABLE.replace("test", "validation"))
    found = join([side(run_of(path))] * 2)
    assert (before.split, found.split) == ("test", "validation")
    assert (found.places < before.places).all()
