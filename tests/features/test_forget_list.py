"""Lists of forgotten users: keyed, joined, never lost in silence."""

import hashlib
import json
from pathlib import Path

import pytest

from features.forget_list import KEYS, ForgetList, UserKeys, key_name
from pipelines.engine.forgotten import add_to_list, read_list

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
