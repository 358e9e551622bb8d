"""The Python door: frames in, lists, explanations, a report and a bundle out."""

import json
import shutil
import sqlite3
import sys
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import numpy as np
import polars as pl
import pytest

from features.build import build_features
from pipelines.datasets.init_file import write_config
from pipelines.presets.resolve import resolve
from pipelines.shop import _as_place, _only
from pipelines.stages.build_features import features_config
from recsys import Shop
from serving.recommend import Recommender
from tests.integration.copies import Recsys
from tests.integration.test_reruns import digests

pd = pytest.importorskip("pandas")
ROOT = Path(__file__).parents[2]
SETTINGS = {"release": {"min_gain_over_popularity": -1.0}}


@pytest.fixture(scope="module")
def events() -> pl.DataFrame:
    """People of two tastes; columns have names of their own."""
    rng = np.random.default_rng(0)
    rows = [
        (f"u{user}", f"{'ab'[user % 2]}{item}", 1_700_000_000 + 1_000 * place + user)
        for user in range(80)
        for place, item in enumerate(rng.permutation(20)[:8])
    ]
    return pl.DataFrame(rows, schema=["customer", "sku", "ts"], orient="row")


@pytest.fixture(scope="module")
def items(events: pl.DataFrame) -> pl.DataFrame:
    skus = events["sku"].unique().sort()
    return pl.DataFrame({"sku": skus, "title": [f"{sku[0]} wool hat {sku[1:]}" for sku in skus]})


@pytest.fixture(scope="module")
def shop(
    events: pl.DataFrame, items: pl.DataFrame, tmp_path_factory: pytest.TempPathFactory
) -> Shop:
    folder = tmp_path_factory.mktemp("shop")
    with sqlite3.connect(folder / "shop.db") as database:
        database.execute("create table products (sku, title)")
        database.executemany("insert into products values (?, ?)", items.rows())
    options = {"budget": "20s", "settings": SETTINGS, "folder": folder, "progress": False}
    return Shop.fit(events, f"sqlite:{folder / 'shop.db'}#products", **options)


def test_lists_are_those_of_the_bundle_and_of_one_taste(shop: Shop) -> None:
    lists = shop.recommend(["u0", "u1"], k=5)
    known = Recommender.load(shop.bundle).recommend(["u0", "u1"], k=5)
    assert lists["item_id"].to_list() == known["item_id"].to_list()
    assert [one[0] for one in lists["item_id"]] == ["a"] * 5 + ["b"] * 5
    assert [one[0] for one in shop.recommend(history=["b1", "b2"], k=3)["item_id"]] == ["b"] * 3
    assert shop.similar("a1", k=3).height == 3


def test_lists_are_explained_searched_and_measured(shop: Shop, items: pl.DataFrame) -> None:
    best = shop.recommend(["u0"], k=1)["item_id"][0]
    assert shop.explain("u0", best).startswith("place 1: ")
    assert "not among the first" in shop.explain("u0", "nothing")
    assert items["title"][0] in shop.search("wool", k=40)["title"].to_list()
    measured = shop.evaluate()
    assert measured["served"].sum() == 1
    assert measured["ndcg@10"].is_sorted(descending=True)


def test_a_measured_ranker_that_is_not_served_is_not_named_as_served(
    shop: Shop, tmp_path: Path
) -> None:
    assert shop.workspace is not None
    shutil.copytree(shop.workspace, tmp_path / "run")
    path = tmp_path / "run" / "evaluate" / "metrics.json"
    metrics = json.loads(path.read_text())
    for splits in metrics.values():
        splits["test"]["ranked"] = dict(next(iter(splits["test"].values())))
    path.write_text(json.dumps(metrics))
    measured = Shop(shop.bundle, tmp_path / "run").evaluate()
    assert "ranked" in measured["model"].to_list()
    assert measured.filter("served")["model"][0] != "ranked"


def test_a_saved_bundle_loads_and_knows_of_no_run(shop: Shop, tmp_path: Path) -> None:
    loaded = Shop.load(shop.save(tmp_path / "bundle"))
    assert loaded.recommend(["u0"]).equals(shop.recommend(["u0"]))
    with pytest.raises(ValueError, match="has no run to report"):
        loaded.report()
    with pytest.raises(ValueError, match="is there already"):
        shop.save(tmp_path / "bundle")
    with pytest.raises(ValueError, match=r"no bundle at .*; make one with"):
        Shop.load(tmp_path / "none")


def test_frames_of_pandas_and_columns_of_any_name_are_read(events: pl.DataFrame) -> None:
    strange = events.rename({"customer": "q1", "sku": "q2", "ts": "q3"})
    frame = pd.DataFrame(strange.to_dict(as_series=False))
    columns = {"user_id": "q1", "item_id": "q2", "event_time": "q3"}
    shop = Shop.fit(frame, columns=columns, budget="8s", settings=SETTINGS, progress=False)
    assert isinstance(shop.recommend(["u0"], k=2), pd.DataFrame)


def test_one_model_makes_lists_alone(
    events: pl.DataFrame, shop: Shop, recsys: Recsys, tmp_path: Path
) -> None:
    off = {"tracking": {"enabled": False}}
    one = Shop.fit(events, model="ease", settings=off, folder=tmp_path, progress=False)
    lines = [*_only("ease"), "tracking.enabled=false"]
    settings = [part for line in lines for part in ("--set", line)]
    recsys(
        "run", tmp_path / "shop.toml", "--set", f"workspace={tmp_path / 'again'}", "-q", *settings
    )
    assert digests(tmp_path / "run") == digests(tmp_path / "again")
    found = one.recommend(["u0", "nobody"], k=3)
    assert found.select("user_id", "source").rows() == [("u0", "ease")] * 3
    assert one.recommend(["nobody"]).columns == found.columns
    assert [item[0] for item in one.similar("b1", k=3)["item_id"]] == ["b"] * 3
    assert {"ease", "popularity"} <= set(one.evaluate()["model"])
    loaded = Shop.load(shop.bundle, model="item_to_item")
    assert set(loaded.recommend(["u0"])["source"]) == {"item_to_item"}
    with pytest.raises(ValueError, match="no model 'als' in the catalogue; there are popularity,"):
        Shop.fit(events, model="als")
    with pytest.raises(ValueError, match="has no model 'repeats'; it has popularity"):
        Shop.load(shop.bundle, model="repeats")


def test_a_failed_fit_leaves_no_folder_and_says_how_to_name_columns(
    events: pl.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ValueError, match="columns names"):
        Shop.fit(events, columns={"user_id": "nothing"})
    with pytest.raises(ValueError, match=r"columns=\{'event_time': NAME"):
        Shop.fit(events.rename({"ts": "q3"}))
    assert list(tmp_path.iterdir()) == []


FORMATS = [
    "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%M:%S+00:00",
    "%d.%m.%Y %H:%M:%S", "%m/%d/%Y %I:%M:%S %p", "%Y%m%d%H%M%S", "%s",
]  # fmt: skip


@pytest.mark.parametrize("kind", [pl.DataFrame, pd.DataFrame])
@pytest.mark.parametrize("form", [*FORMATS, "texts and numbers", "texts and times"])
def test_times_are_read_from_texts(
    events: pl.DataFrame, form: str, kind: type, tmp_path: Path
) -> None:
    times = events["ts"].to_list()
    moments = [datetime.fromtimestamp(one, UTC) for one in times]
    texts: list[object] = [
        str(time) if form in ("%s", "texts and numbers") else
        f"{moment:{form if '%' in form else FORMATS[2]}}"
        for time, moment in zip(times, moments, strict=True)
    ]  # fmt: skip
    if "texts" in form:
        texts[::2] = (times if "numbers" in form else moments)[::2]
    columns = events.drop("ts").to_dict(as_series=False)
    mixed = kind is pl.DataFrame and "texts" in form
    frame = kind({**columns, "ts": pl.Series(texts, dtype=pl.Object) if mixed else texts})
    write_config([_as_place(frame, tmp_path / "e", {})], tmp_path / "shop.toml", force=True)
    build_features(features_config(resolve(tmp_path / "shop.toml")), tmp_path / "out")
    found = pl.read_parquet(tmp_path / "out" / "events")["event_time"]
    assert sorted(found.dt.epoch("s")) == sorted(times)


@pytest.mark.parametrize("one", ["13 January 2026", "soon", "13/01/2026"])
def test_times_of_other_texts_are_shown(events: pl.DataFrame, one: str, tmp_path: Path) -> None:
    times = pl.from_epoch("ts").dt.to_string("%Y-%m-%d")
    odd = pl.when(pl.int_range(pl.len()) % 30 == 4).then(pl.lit(one)).otherwise(times)
    said = f"Convert column 'when', which has '{one}'"
    with pytest.raises(ValueError, match=said):
        Shop.fit(events.select("customer", "sku", odd.alias("when")), folder=tmp_path)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("postgresql://ann:geheim@db.shop/shop#orders", "without a password: set PGPASSWORD"),
        ("postgresql://ann@/shop?host=/nowhere#orders", "cannot be read: .*; check the address"),
        ("sqlite:shop.db#select * from orders where 1 = 0", "no rows"),
        ("sqlite:shop.db#select sold from orders", "cannot be read: no such column"),
        ("no/such/file.csv", "no file"),
    ],
)
def test_what_cannot_be_read_is_explained_without_passwords(
    place: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with sqlite3.connect("shop.db") as database:
        database.execute("create table orders (customer, sku, ts)")
    with pytest.raises(ValueError, match=said) as caught:
        Shop.fit(place, folder="kept")
    written = [path for path in Path("kept").rglob("*") if path.is_file()]
    assert not any("geheim" in text for text in (str(caught.value), *map(Path.read_text, written)))


DAYS = pd.to_datetime(["2026-01-01", "2026-01-02"])
FRAMES = {
    "mixed ids": (pd.DataFrame({"user": [7, "ann"]}), ["7", "ann"]),
    "objects": (pl.DataFrame({"user": pl.Series([7, "a"], dtype=pl.Object)}), ["7", "a"]),
    "times and texts": (pd.DataFrame({"ts": [DAYS[0], "x", pd.NaT]}), [str(DAYS[0]), "x", None]),
    "uuids": (pd.DataFrame({"user": [UUID(int=1), None]}), [str(UUID(int=1)), None]),
    "a missing integer": (pd.DataFrame({"user": [7, None]}), [7, None]),
    "halves": (pd.DataFrame({"price": [7.5, None]}), [7.5, None]),
    "an Arrow table": (pl.DataFrame({"user": ["a", "b"]}).to_arrow(), ["a", "b"]),
    "a lazy frame": (pl.LazyFrame({"user": ["a", "b"]}), ["a", "b"]),
    "categories": (pd.DataFrame({"user": pd.Categorical(["a", "b"])}), ["a", "b"]),
    "an index": (pd.DataFrame({"user": [1, 2]}, index=pd.Series(DAYS, name="ts")), list(DAYS)),
}


@pytest.mark.parametrize("frame", FRAMES)
def test_columns_of_frames_become_types_that_files_have(frame: str, tmp_path: Path) -> None:
    given, expected = FRAMES[frame]
    found = pl.read_parquet(_as_place(given, tmp_path / "events", {})).to_series()
    assert found.to_list() == expected


def test_frames_of_polars_need_no_pandas(monkeypatch: pytest.MonkeyPatch, shop: Shop) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert shop.recommend(["u0"], k=2).height == 2


def test_what_is_no_table_and_no_list_is_refused(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="events are a int; give a frame"):
        Shop.fit(42, folder=tmp_path)
    with pytest.raises(ValueError, match=r"give \['u0'\]"):
        shop.recommend("u0")
    with pytest.raises(ValueError, match=r"give \['a1'\]"):
        shop.recommend(history="a1")
    assert shop.recommend(pl.Series(["u0"]), k=2).equals(shop.recommend(pd.Series(["u0"]), k=2))
    with pytest.raises(ValueError, match="users or a history"):
        shop.recommend()


@pytest.mark.mirror
@pytest.mark.slow
def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cells = json.loads((ROOT / "examples" / "notebook.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert Shop.load(tmp_path / "movies").recommend(["42"], k=5).height == 5
