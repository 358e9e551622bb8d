"""Users who were forgotten leave no trace in an artefact; who comes back begins anew."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import polars as pl

from features.build import FeaturesConfig, build_features
from features.forget_list import ForgetList, UserKeys
from features.people import FORGOTTEN
from features.schema import FilterConfig, SourceConfig
from tests.features.test_build import histories

NOW = datetime(2024, 6, 1, tzinfo=UTC)
START = 1_700_000_000
PERSON = "ann.of.somewhere"
ROWS = [(PERSON, "x", 0), (PERSON, "y", 1), ("bo", "x", 2), ("bo", "y", 3), ("cy", "y", 4)]


def write(folder: Path, rows, extra: str = "") -> FeaturesConfig:
    lines = [f"{user},{item},{START + at}" for user, item, at in rows]
    text = "\n".join(["user_id,item_id,event_time", *lines]) + f"\n{extra}"
    (folder / "events.csv").write_text(text)
    (folder / "users.csv").write_text(f"user_id,country\n{PERSON},AT\nbo,CH\ncy,AT\n")
    return FeaturesConfig(
        events=SourceConfig(paths=(folder / "events.csv",)),
        users=SourceConfig(paths=(folder / "users.csv",)),
        filters=FilterConfig(max_bad_share=0.5),
        user_features=("country",),
        now=NOW,
    )


def until(at: int, user: str = PERSON) -> ForgetList:
    return ForgetList.of([user], 1_000 * (START + at), UserKeys((b"a secret of tests",)))


def holds(folder: Path, text: str) -> list[str]:
    """Name files that hold a text, Parquet ones as they are read."""
    found = []
    for path in sorted(one for one in folder.rglob("*") if one.is_file()):
        if path.suffix == ".parquet":
            table = pl.read_parquet(path, hive_partitioning=False)
            content = str(table.to_dicts()).encode()
        else:
            content = path.read_bytes()
        if text.encode() in content:
            found.append(str(path.relative_to(folder)))
    return found


def built(config: FeaturesConfig, out: Path, **changed):
    report = build_features(FeaturesConfig(**{**vars(config), **changed}), out)
    return out, report


def test_nothing_of_the_person_is_in_the_artefact(tmp_path: Path) -> None:
    config = write(tmp_path, ROWS, extra=f"{PERSON},,{START}\n")
    with_them, _ = built(config, tmp_path / "before")
    assert {Path(name).parts[0] for name in holds(with_them, PERSON)} >= {
        "vocabularies",
        "users.parquet",
        "quarantine",
    }
    out, report = built(config, tmp_path / "after", forgotten=until(10))
    assert holds(out, PERSON) == []
    assert histories(out) == {"bo": ["x", "y"], "cy": ["y"]}
    # The row without an item is counted with theirs, not as a bad one.
    assert report.filtered[FORGOTTEN] == report.forgotten["events"] == 3
    assert report.forgotten["users"] == 1
    assert report.quarantined == {}
    assert report.rows_in == 6 == report.events + sum(report.filtered.values())


def test_events_after_they_were_forgotten_are_of_a_new_user(tmp_path: Path) -> None:
    config = write(tmp_path, [*ROWS, (PERSON, "y", 20), (PERSON, "x", 30)])
    out, report = built(config, tmp_path / "out", forgotten=until(20))
    assert histories(out)[PERSON] == ["x"]
    assert report.filtered[FORGOTTEN] == 3
    # What a table says of them may be from before.
    people = pl.read_parquet(out / "users.parquet")
    assert people.filter(user_id=PERSON)["country"].to_list() == [None]


def test_rows_of_an_earlier_vocabulary_stay_without_their_id(tmp_path: Path) -> None:
    config = write(tmp_path, ROWS)
    first, _ = built(config, tmp_path / "first")
    second, _ = built(config, tmp_path / "second", previous=first, forgotten=until(10))
    assert holds(second, PERSON) == []
    ids = pl.read_parquet(second / "vocabularies" / "users.parquet")["id"].to_list()
    assert ids == ["(forgotten 1)", "bo", "cy"]
    # They come back, get a row of their own, and keep it in the build after that.
    config = write(tmp_path, [*ROWS, (PERSON, "y", 20)])
    third, _ = built(config, tmp_path / "third", previous=second, forgotten=until(10))
    fourth, _ = built(config, tmp_path / "fourth", previous=third, forgotten=until(10))
    for out in (third, fourth):
        ids = pl.read_parquet(out / "vocabularies" / "users.parquet")["id"].to_list()
        assert ids == ["(forgotten 1)", "bo", "cy", PERSON]
