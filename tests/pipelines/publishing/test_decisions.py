"""Decisions on releases: signed, verified, never changed, and what promotion makes of them."""

import hashlib
import json
from pathlib import Path

import pytest

from pipelines.config.tracking import TrackingConfig
from pipelines.engine.errors import RefusedError
from pipelines.engine.signing import TamperedError, key_name, signing_key
from pipelines.publishing.approval import keep_refused
from pipelines.publishing.decisions import (
    Decision,
    decision_on,
    read_decisions,
    write_decision,
)
from pipelines.publishing.promotion import champions, promote, rollback
from serving.bundle.manifest import read_manifest
from tests.serving.synthetic_bundle import write_synthetic_bundle

KEY = b"0123456789abcdef-operators"
OFF = TrackingConfig(enabled=False)


def decided(bundles: Path, version: str, key: bytes | None, **changes: object) -> Path:
    directory = bundles / f"bundle-{version}"
    digest = read_manifest(directory)[1] if directory.exists() else None
    fields = {
        "outcome": "released",
        "challenger": version,
        "champion": None,
        "challenger_digest": digest,
    }
    return write_decision(bundles, Decision(**{**fields, **changes}), key)


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    for version in ("v1", "v2"):
        write_synthetic_bundle(tmp_path, version)
    return tmp_path


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> bytes:
    monkeypatch.setenv("RECSYS_SIGNING_KEY", KEY.decode())
    return KEY


def test_what_was_written_is_read_and_verified(bundles: Path) -> None:
    decided(bundles, "v1", KEY, words=["All 3 checks passed."])
    decided(bundles, "v2", None)
    found, faults = read_decisions(bundles, KEY)
    assert faults == []
    assert [(one.decision.challenger, one.state) for one in found] == [
        ("v1", "signed"),
        ("v2", "unsigned"),
    ]
    assert found[0].decision.words == ["All 3 checks passed."]
    assert [one.state for one in read_decisions(bundles, None)[0]] == ["not verified", "unsigned"]


def test_a_changed_file_is_named_and_so_is_one_that_is_gone(bundles: Path) -> None:
    first, second, third = (decided(bundles, name, KEY) for name in ("v1", "v2", "v1"))
    document = json.loads(second.read_text())
    second.chmod(0o644)
    second.write_text(json.dumps({**document, "outcome": "refused"}))
    found, faults = read_decisions(bundles, KEY)
    assert [one.path for one in found] == [first, third]
    assert f"{second} was altered after it was signed" in faults[0]
    with pytest.raises(TamperedError, match="altered"):
        decision_on(bundles, "v2", KEY)
    second.unlink()
    assert read_decisions(bundles, KEY)[1] == [
        f"a decision before {third.name} is missing or was altered"
    ]


@pytest.mark.parametrize("key", [KEY, None])
@pytest.mark.parametrize("gone", [(0,), (1,), (2,), (1, 2), (0, 1, 2)])
def test_whichever_decision_is_deleted_is_missed(
    bundles: Path, gone: tuple[int, ...], key: bytes | None
) -> None:
    written = [decided(bundles, name, key) for name in ("v1", "v2", "v1")]
    assert read_decisions(bundles, key)[1] == []
    for place in gone:
        written[place].unlink()
    assert "is missing or was altered" in " ".join(read_decisions(bundles, key)[1])
    # A decision that is written afterwards does not hide it.
    decided(bundles, "v2", key)
    assert "is missing or was altered" in " ".join(read_decisions(bundles, key)[1])


def test_the_newest_decision_cannot_be_deleted_together_with_what_names_it(bundles: Path) -> None:
    first, second = (decided(bundles, name, KEY) for name in ("v1", "v2"))
    kept = (first.parent / "newest").read_bytes()
    second.unlink()
    (first.parent / "newest").unlink()
    assert "newest is missing or unreadable" in read_decisions(bundles, KEY)[1][0]
    # Nor can anyone without the key name another one.
    digest = hashlib.sha256(first.read_bytes()).hexdigest()
    forged = {**json.loads(kept), "sha256": digest}
    for document in (forged, {**forged, "signature": None}):
        (first.parent / "newest").write_text(json.dumps(document))
        (fault,) = read_decisions(bundles, KEY)[1]
        assert "was altered after it was signed" in fault or "is unsigned" in fault


def test_decisions_of_before_have_nothing_that_names_the_newest(bundles: Path) -> None:
    path = decided(bundles, "v1", KEY, format=1)
    (path.parent / "newest").unlink()
    assert read_decisions(bundles, KEY)[1] == []
    decided(bundles, "v2", KEY)
    assert read_decisions(bundles, KEY)[1] == []


def test_another_key_is_not_taken_for_tampering(bundles: Path) -> None:
    decided(bundles, "v1", KEY)
    other = b"another-key-of-operators"
    (fault,) = read_decisions(bundles, other)[1]
    assert f"signed with key {key_name(KEY)}, the one that is set is {key_name(other)}" in fault
    assert KEY.decode() not in fault


def test_key_comes_from_a_variable_or_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_with_a_key_only_what_has_a_signed_decision_is_promoted(bundles: Path, key: bytes) -> None:
    with pytest.raises(RefusedError, match="no signed decision on it"):
        promote(bundles, "v1", config=OFF)
    decided(bundles, "v1", None)
    with pytest.raises(RefusedError, match="is not signed"):
        promote(bundles, "v1", config=OFF)
    decided(bundles, "v1", key)
    promote(bundles, "v1", config=OFF)
    assert champions(bundles) == ["v1"]
    decided(bundles, "v2", key, challenger_digest="0" * 64)
    with pytest.raises(RefusedError, match="altered after the decision"):
        promote(bundles, "v2", config=OFF)
    promote(bundles, "v2", config=OFF, force=True)
    rollback(bundles, config=OFF)
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


def test_a_refused_bundle_is_served_only_by_force_which_is_written_down(bundles: Path) -> None:
    promote(bundles, "v1", config=OFF)
    verdict = {"name": "index recall", "value": 0.1, "bound": 0.99, "passed": False, "reason": ""}
    decided(bundles, "v2", None, outcome="refused", verdicts=[verdict])
    keep_refused(bundles, bundles / "bundle-v2")
    assert not (bundles / "bundle-v2").exists()
    with pytest.raises(RefusedError, match="it was refused: index recall"):
        promote(bundles, "v2", config=OFF)
    assert champions(bundles) == ["v1"]
    promote(bundles, "v2", config=OFF, force=True)
    assert champions(bundles) == ["v1", "v2"]
    last = read_decisions(bundles, None)[0][-1].decision
    assert (last.outcome, last.forced, last.champion) == ("promoted", True, "v1")
    assert "it was refused: index recall" in last.words[1]
    # It may be gone back to: what was forced is the latest decision on it.
    promote(bundles, "v1", config=OFF)
    rollback(bundles, config=OFF)
    assert champions(bundles) == ["v1", "v2"]
