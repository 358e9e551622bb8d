"""Forgotten users: lists keyed, joined, never lost in silence; artefacts without a trace."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from features.build import FeaturesConfig, build_features
from features.forget_list import KEYS, ForgetList, UserKeys, key_name
from features.people import FORGOTTEN
from features.schema import FilterConfig, SourceConfig
from pipelines.engine.forgotten import add_to_list, read_list
from tests.features.test_build import NOW, START, histories
from tests.features.test_ids import vocabulary

FIRST, SECOND = UserKeys((b"first key of tests",)), UserKeys((b"second key of tests",))


def test_without_the_key_ids_cannot_be_tried(tmp_path: Path) -> None:
    keys = UserKeys.make(tmp_path)
    (entry,) = ForgetList.of(["4711"], 5, keys).moments
    tried = {hashlib.sha256(str(number).encode()).hexdigest() for number in range(5_000)}
    tried |= set(ForgetList.of(map(str, range(5_000)), 5, FIRST).moments)
    assert entry.partition(":")[2] not in {one.rpartition(":")[2] for one in tried}
    assert ForgetList.of(["4711"], 5, keys).moment("4711") == 5
    # Whoever reads the entry, or prints the list, has no key.
    assert entry.startswith(key_name(keys.keys[0]) + ":")
    assert keys.keys[0].decode() not in repr(ForgetList.of(["4711"], 5, keys))
    assert keys.keys[0].decode()[:8] != key_name(keys.keys[0])


def test_lists_of_several_keys_are_joined_and_the_latest_moment_counts(tmp_path: Path) -> None:
    path = tmp_path / "forgotten.json"
    assert add_to_list(path, ForgetList.of(["ann", "bo"], 5, FIRST)) == 2
    assert add_to_list(path, ForgetList.of(["ann"], 9, SECOND)) == 1
    assert add_to_list(path, ForgetList.of(["ann"], 4, FIRST)) == 0
    found = read_list(path)
    assert [found.moment(user) for user in ("ann", "bo", "cy")] == [9, 5, None]
    assert found.keys == FIRST | SECOND
    # Users of this workspace are hashed with its first key.
    assert UserKeys.make(tmp_path).keys[0] == FIRST.keys[0]


def test_a_list_is_refused_without_its_key_and_read_without_one_if_it_is_old(
    tmp_path: Path,
) -> None:
    path = tmp_path / "forgotten.json"
    old = {hashlib.sha256(b"-9223372036854775808").hexdigest(): 7}
    path.write_text(json.dumps({"format": 1, "users": old}))
    assert read_list(path).moment("-9223372036854775808") == 7
    assert read_list(path).moment("9223372036854775808") is None
    add_to_list(path, ForgetList.of(["ann"], 8, FIRST))
    assert [read_list(path).moment(user) for user in ("-9223372036854775808", "ann")] == [7, 8]
    (tmp_path / KEYS).unlink()
    with pytest.raises(
        ValueError, match=rf"forgotten\.json .* under the key [0-9a-f]{{8}}.*{KEYS}"
    ):
        read_list(path)


def test_the_environments_key_comes_first_and_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "forgotten.json"
    add_to_list(path, ForgetList.of(["bo"], 5, UserKeys.make(tmp_path)))
    (tmp_path / "secret").write_text("of the environment\n")
    monkeypatch.setenv("RECSYS_USER_KEY_FILE", str(tmp_path / "secret"))
    keys = UserKeys.make(tmp_path)
    assert keys.keys[0] == b"of the environment"
    add_to_list(path, ForgetList.of(["ann"], 6, keys))
    assert b"environment" not in (tmp_path / KEYS).read_bytes()
    assert [read_list(path).moment(user) for user in ("ann", "bo")] == [6, 5]
    monkeypatch.setenv("RECSYS_USER_KEY", "short")
    with pytest.raises(ValueError, match="RECSYS_USER_KEY has 5 bytes, it needs at least 16"):
        read_list(path)


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
        content = path.read_bytes()
        if path.suffix == ".parquet":
            content = str(pl.read_parquet(path, hive_partitioning=False).to_dicts()).encode()
        if text.encode() in content:
            found.append(str(path.relative_to(folder)))
    return found


def built(config: FeaturesConfig, out: Path, **changed):
    return out, build_features(replace(config, **changed), out)


def test_nothing_of_the_person_is_in_the_artefact(tmp_path: Path) -> None:
    config = write(tmp_path, ROWS, extra=f"{PERSON},,{START}\n")
    with_them, _ = built(config, tmp_path / "before")
    places = {Path(name).parts[0] for name in holds(with_them, PERSON)}
    assert places >= {"vocabularies", "users.parquet", "quarantine"}
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
    assert vocabulary(second, "users") == ["(forgotten 1)", "bo", "cy"]
    # They come back, get a row of their own, and keep it in the build after that.
    config = write(tmp_path, [*ROWS, (PERSON, "y", 20)])
    for name in ("third", "fourth"):
        out, _ = built(config, tmp_path / name, previous=second, forgotten=until(10))
        assert vocabulary(out, "users") == ["(forgotten 1)", "bo", "cy", PERSON]
        second = out
