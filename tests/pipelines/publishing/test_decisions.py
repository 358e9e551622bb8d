"""Decisions on releases: signed, verified, never changed, and what promotion makes of them."""

import json
from pathlib import Path

import pytest

from pipelines.engine.decisions import (
    Decision,
    append_decision,
    key_name,
    read_decisions,
    signing_key,
)
from pipelines.engine.errors import RefusedError
from pipelines.publishing.promotion import champions, promote, rollback
from serving.bundle.manifest import read_manifest
from tests.serving.synthetic_bundle import write_synthetic_bundle

KEY = b"0123456789abcdef-operators"


def decided(bundles: Path, version: str, key: bytes | None, **changes: object) -> None:
    directory = bundles / f"bundle-{version}"
    digest = read_manifest(directory)[1] if directory.exists() else None
    fields = {
        "outcome": "released",
        "challenger": version,
        "champion": None,
        "challenger_digest": digest,
    }
    append_decision(bundles, Decision(**{**fields, **changes}), key)


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    for version in ("v1", "v2"):
        write_synthetic_bundle(tmp_path, version)
    return tmp_path


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setenv("RECSYS_SIGNING_KEY", KEY.decode())
    return KEY


def test_what_was_written_is_read_and_verified(bundles):
    decided(bundles, "v1", KEY, words=["All 3 checks passed."])
    decided(bundles, "v2", None)
    found, faults = read_decisions(bundles, KEY)
    # The head is signed as the last line is.
    assert faults == []
    assert [(one.decision.challenger, one.state) for one in found] == [
        ("v1", "signed"),
        ("v2", "unsigned"),
    ]
    assert found[0].decision.words == ["All 3 checks passed."]
    assert [one.state for one in read_decisions(bundles, None)[0]] == ["not verified", "unsigned"]
    other = b"another-key-of-operators"
    fault = read_decisions(bundles, other)[1][0]
    assert f"signed with key {key_name(KEY)}, the one that is set is {key_name(other)}" in fault
    assert KEY.decode() not in fault


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize("gone", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
def test_whichever_decision_is_removed_is_missed(bundles, gone, key):
    for name in ("v1", "v2", "v1"):
        decided(bundles, name, key)
    assert read_decisions(bundles, key)[1] == []
    log = bundles / "releases.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(line for place, line in enumerate(lines) if place not in gone))
    assert "is missing or was altered" in " ".join(read_decisions(bundles, key)[1])
    # A decision that is written afterwards does not hide it.
    decided(bundles, "v2", key)
    assert "is missing or was altered" in " ".join(read_decisions(bundles, key)[1])


def test_the_newest_decision_cannot_be_removed_together_with_the_head(bundles):
    for name in ("v1", "v2"):
        decided(bundles, name, KEY)
    log, head = bundles / "releases.jsonl", bundles / "releases.head"
    kept = json.loads(head.read_bytes())
    first = log.read_text().splitlines(keepends=True)[0]
    log.write_text(first)
    head.unlink()
    assert "releases.head is missing or unreadable" in read_decisions(bundles, KEY)[1][0]
    # Nor can a person without the key name another line as the last.
    forged = {**kept, "sha256": read_decisions(bundles, KEY)[0][0].digest}
    for document in (forged, {**forged, "signature": None}):
        head.write_text(json.dumps(document))
        (fault,) = read_decisions(bundles, KEY)[1]
        assert "was altered after it was signed" in fault or "is unsigned" in fault


def test_a_kill_before_the_head_or_within_a_line_is_no_fault(bundles):
    decided(bundles, "v1", KEY)
    head = (bundles / "releases.head").read_bytes()
    decided(bundles, "v2", KEY)
    (bundles / "releases.head").write_bytes(head)
    with (bundles / "releases.jsonl").open("a") as file:
        file.write('{"challenger": "v1", "outc')
    assert read_decisions(bundles, KEY)[1] == []
    decided(bundles, "v1", KEY)
    found, faults = read_decisions(bundles, KEY)
    assert ([one.decision.challenger for one in found], faults) == (["v1", "v2", "v1"], [])


def test_key_comes_from_a_variable_or_a_file(tmp_path, monkeypatch):
    monkeypatch.delenv("RECSYS_SIGNING_KEY", raising=False)
    monkeypatch.delenv("RECSYS_SIGNING_KEY_FILE", raising=False)
    assert signing_key() is None
    (tmp_path / "key").write_bytes(KEY + b"\n")
    monkeypatch.setenv("RECSYS_SIGNING_KEY_FILE", str(tmp_path / "key"))
    assert signing_key() == KEY
    monkeypatch.setenv("RECSYS_SIGNING_KEY_FILE", str(tmp_path / "none"))
    with pytest.raises(ValueError, match="cannot read the signing key"):
        signing_key()
    monkeypatch.setenv("RECSYS_SIGNING_KEY", "short-secret")
    with pytest.raises(ValueError, match="12 bytes, it needs at least 16") as error:
        signing_key()
    assert "short-secret" not in str(error.value)


def test_with_a_key_only_what_has_a_signed_decision_is_promoted(bundles, key):
    with pytest.raises(RefusedError, match="no signed decision on it"):
        promote(bundles, "v1")
    decided(bundles, "v1", None)
    with pytest.raises(RefusedError, match="is not signed"):
        promote(bundles, "v1")
    decided(bundles, "v1", key)
    promote(bundles, "v1")
    assert champions(bundles) == ["v1"]
    decided(bundles, "v2", key, challenger_digest="0" * 64)
    with pytest.raises(RefusedError, match="altered after the decision"):
        promote(bundles, "v2")
    promote(bundles, "v2", force=True)
    rollback(bundles)
    assert champions(bundles) == ["v1"]
    found, faults = read_decisions(bundles, key)
    assert faults == []
    assert [(one.decision.outcome, one.decision.forced) for one in found][2:] == [
        ("promoted", False),
        ("released", False),
        ("promoted", True),
        ("rolled back", False),
    ]
    assert "altered after the decision" in found[-2].decision.words[1]
