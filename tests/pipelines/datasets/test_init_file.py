"""Strangers' files to a TOML: what is guessed, what is said, and what is refused."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from features.build import build_features
from features.reading.column_guesses import guess_time
from pipelines.datasets.fetch import fetch
from pipelines.datasets.init_file import write_config
from pipelines.datasets.registry import DATASETS
from pipelines.presets.resolve import resolve
from pipelines.stages.build_features import features_config

START = datetime(2023, 3, 1, 10, tzinfo=UTC)
MOMENTS = [START + timedelta(hours=7 * n) for n in range(60)]
USERS = [f"u{n % 6}" for n in range(60)]
ITEMS = [f"p{(n * 7) % 10}" for n in range(60)]


def semicolons(folder: Path) -> list[Path]:
    rows = [
        f"{u};{i};{t:%d.%m.%Y %H:%M};{n},50"
        for n, (u, i, t) in enumerate(zip(USERS, ITEMS, MOMENTS, strict=True))
    ]
    header = "Kundennummer;Artikelnummer;Datum;Betrag\n"
    (folder / "bestellungen.csv").write_text(header + "\n".join(rows))
    catalogue = "".join(f"p{n};Tee {n};{n},99\n" for n in range(10))
    (folder / "artikel.csv").write_text("Nr;Bezeichnung;Preis\n" + catalogue)
    return [folder / "artikel.csv", folder / "bestellungen.csv"]


def json_lines(folder: Path) -> list[Path]:
    table = pl.DataFrame({
        "visitorId": USERS, "productId": ITEMS, "action": ["view"] * 60,
        "ts": [int(moment.timestamp() * 1000) for moment in MOMENTS], "meta": [{"a": 1}] * 60,
    })  # fmt: skip
    table.write_ndjson(folder / "log.jsonl")
    return [folder / "log.jsonl"]


def american_dates(folder: Path) -> list[Path]:
    table = pl.DataFrame({
        "Customer ID": USERS, "StockCode": ITEMS,
        "InvoiceDate": [f"{moment:%m/%d/%Y %H:%M}" for moment in MOMENTS],
    })  # fmt: skip
    table.write_csv(folder / "retail.csv")
    return [folder / "retail.csv"]


def nameless_columns(folder: Path) -> list[Path]:
    table = pl.DataFrame({"a": USERS, "b": ITEMS, "c": [moment.isoformat() for moment in MOMENTS]})
    table.write_csv(folder / "x.tsv", separator="\t")
    return [folder / "x.tsv"]


def only_an_order(folder: Path) -> list[Path]:
    table = pl.DataFrame({"reviewerID": USERS, "asin": ITEMS, "position": list(range(60))})
    table.write_parquet(folder / "reviews.parquet")
    return [folder / "reviews.parquet"]


STRANGERS = [semicolons, json_lines, american_dates, nameless_columns, only_an_order]


@pytest.mark.parametrize("shape", STRANGERS)
def test_features_are_built_from_what_init_wrote(shape, tmp_path):
    target = tmp_path / "shop.toml"
    write_config(shape(tmp_path), target, force=False)
    report = build_features(features_config(resolve(target)), tmp_path / "out")
    assert (report.events, report.quarantined) == (60, {})
    assert (report.users, report.items) == (6, 10)
    if shape is not only_an_order:
        assert report.first_time == START.isoformat()
    if shape is nameless_columns:
        doubt = "# not sure: no column is named like user_id; 'a' was chosen"
        assert doubt in target.read_text()
        with pytest.raises(ValueError, match="is there already"):
            write_config([tmp_path / "x.tsv"], target, force=False)
    if shape is semicolons:
        items = pl.read_parquet(tmp_path / "out/items.parquet").sort("item_id")
        assert items.select("item_id", "title", "price").row(3) == ("p3", "Tee 3", 3.99)


def test_types_that_only_say_what_was_shown_stay_out_of_histories(tmp_path):
    kinds = ["Impressions", "click", "purchase", "Dislike"] * 15
    table = pl.DataFrame(
        {"user_id": USERS, "item_id": ITEMS, "event_time": MOMENTS, "event": kinds}
    )
    table.write_parquet(tmp_path / "events.parquet")
    write_config([tmp_path / "events.parquet"], tmp_path / "shop.toml", force=False)
    text = (tmp_path / "shop.toml").read_text()
    assert '# event_types = ["Dislike", "click", "purchase"]' in text
    config = resolve(tmp_path / "shop.toml")
    assert config.filters.shown_types == ("Impressions",)
    assert config.filters.negative_types == ("Dislike",)
    assert config.filters.event_types == ()


@pytest.mark.parametrize(
    ("name", "values", "mapped", "named"),
    [
        ("kind", ["play", "play", "wishlist", "play", "wishlist", "play", "play"], True, False),
        ("what", ["product_view", "addToCart", "purchased", "product_view"] * 2, True, False),
        (
            "device",
            ["mobile", "desktop", "mobile", "tablet", "mobile", "desktop", "tv"],
            False,
            True,
        ),
        ("condition", ["new", "like new", "used", "new", "like new", "used", "new"], False, True),
        ("stars", ["5", "3", "4", "1", "2", "5", "4"], False, False),
        ("type", ["book", "game"] * 5, False, False),
    ],
)
def test_what_was_done_is_found_by_its_values_and_only_if_they_are_deeds(
    name, values, mapped, named, tmp_path
):
    # Ten values are those of the items.
    column = [
        values[int(item[1]) if len(values) == 10 else n % len(values)]
        for n, item in enumerate(ITEMS)
    ]
    table = pl.DataFrame({"user": USERS, "item": ITEMS, "time": MOMENTS, name: column})
    table.write_parquet(tmp_path / "events.parquet")
    found = write_config([tmp_path / "events.parquet"], tmp_path / "shop.toml", force=False)
    assert (found["events"].columns.get("event_type") == name) is mapped
    text = (tmp_path / "shop.toml").read_text()
    assert (f"if column '{name}'" in text) is named
    assert (f'# target_types = ["{min(values, key=column.count)}"]' in text) is mapped
    resolve(tmp_path / "shop.toml")


def test_swappable_day_and_month_are_offered(tmp_path):
    days = ["03/04/2023", "04/04/2023", "05/04/2023", "06/04/2023"] * 3
    table = pl.DataFrame({"user": USERS[:12], "item": ITEMS[:12], "date": days})
    table.write_csv(tmp_path / "events.csv")
    write_config([tmp_path / "events.csv"], tmp_path / "shop.toml", force=False)
    text = (tmp_path / "shop.toml").read_text()
    assert '\ntime_format = "%d/%m/%Y"' in text
    assert '# time_format = "%m/%d/%Y"' in text


def test_ids_of_any_kind_are_recognised(tmp_path):
    """Negative numbers of 64 bits, leading zeros, and texts, as a public log of news has them."""
    users = [str(-(2**63) + n % 6) for n in range(60)]
    items = [f"{(n * 7) % 10:04d}" for n in range(60)]
    moments = [int(moment.timestamp()) for moment in MOMENTS]
    table = pl.DataFrame({"user": users, "article": items, "timestamp": moments})
    table.write_csv(tmp_path / "clicks.csv")
    target = tmp_path / "news.toml"
    write_config([tmp_path / "clicks.csv"], target, force=False)
    build_features(features_config(resolve(target)), tmp_path / "out")
    for name, ids in (("users", users), ("items", items)):
        found = pl.read_parquet(tmp_path / f"out/vocabularies/{name}.parquet")["id"].to_list()
        assert sorted(found) == sorted(set(ids))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.csv", b"", "is empty"),
        ("one.csv", b"user,item,time\n", "a header and no rows"),
        ("data.xlsx", b"PK", "known endings are"),
        ("binary.csv", b"\x00\x01\x02,\x00", "binary"),
        ("bare.csv", b"196,242,881250949\n186,302,891717742\n", "has no header"),
        ("texts.csv", b"ann,b7,1360886400\nbob,b7,1360886500\n", "has no header"),
        ("plain.csv", b"colour,size\nred,1\nblue,2\n", "no column looks like"),
        ("broken.parquet", b"PAR1 and no more", "cannot read"),
    ],
)
def test_files_that_cannot_be_used_are_named(name, content, message, tmp_path):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        write_config([tmp_path / name], tmp_path / "shop.toml", force=False)
    assert name in str(caught.value)
    assert not (tmp_path / "shop.toml").exists()


@pytest.mark.mirror
@pytest.mark.usefixtures("real_mirror")
def test_tables_of_known_data_sets_are_guessed(tmp_path):
    for dataset in DATASETS.values():
        fetched = fetch(dataset)
        names = ("users", "items", "events")
        paths = [path for table in names if (path := fetched.table(table)) is not None]
        found = write_config(paths, tmp_path / "shop.toml", force=True)
        assert {one.path.stem for one in found.values()} == set(found)
        columns = found["events"].columns
        assert all(ours == theirs for ours, theirs in columns.items() if theirs)


def test_dates_of_six_digits_or_more_are_times_and_other_texts_are_not():
    for values in (["blue"], [1, 999], ["12.50", "3.99"], ["a1b2c3d4e5f6"], ["x 2024-01-31"]):
        assert guess_time(pl.Series(values)) is None
    for values, time_format in (
        (["1.2.2024", "28.2.2024"], "%d.%m.%Y"),
        (["20240131", "20240228"], "%Y%m%d"),
        ([" 2024-01-31 10:00", "2024-02-28 11:00"], None),
        (["12/31/2024 1:05 PM"], "%m/%d/%Y %I:%M %p"),
    ):
        found = guess_time(pl.Series(values))
        assert found is not None
        assert found.time_format == time_format
