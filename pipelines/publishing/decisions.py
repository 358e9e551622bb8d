"""The decisions on releases, one JSON file each, signed where a key is set.

    <bundles>/decisions/<time>-<challenger>.json
    <bundles>/decisions/newest      digest of the newest one, signed as well
    <bundles>/decisions/fetched/    those that came with bundles from a registry

A file is written for each release, refusal, promotion and rollback, and never changed. Each names
the digest of the one before it, and ``newest`` the last, so a missing one leaves a gap.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from pipelines.engine.artifacts import to_json
from pipelines.engine.signing import SIGNATURE, TamperedError, check_signature, signed
from pipelines.tracking.entries import DECISIONS, FETCHED, decisions_on
from recsys.data.durable import write_durably

FOLDER = DECISIONS
NEWEST = "newest"
FORMAT = 2
"""From 2 on, `NEWEST` names the last decision."""
Outcome = Literal["released", "kept as challenger", "refused", "promoted", "rolled back"]
GOOD: tuple[Outcome, ...] = ("released", "kept as challenger", "promoted", "rolled back")


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What was decided on one version, and why."""

    time: str = ""
    outcome: Outcome
    challenger: str
    """Version that was decided on."""
    champion: str | None
    """Version that was served before."""
    challenger_digest: str | None
    """Of the bundle's manifest; None where no bundle could be written."""
    config_digest: str = ""
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    power: dict[str, float | int | str | None] = field(default_factory=dict)
    """What difference could have been found."""
    words: list[str] = field(default_factory=list)
    """The reasons in plain words, most important first."""
    forced: bool = False
    """Whether somebody published it though it was refused or has no decision."""
    previous: str | None = None
    """sha256 of the decision before it."""
    format: int = FORMAT

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The verdicts that did not pass."""
        return [one for one in self.verdicts if not one["passed"]]


@dataclass(frozen=True)
class Written:
    """A decision as it lies on disk."""

    path: Path
    decision: Decision
    state: str
    """``signed``, ``unsigned`` or ``not verified``."""
    digest: str


def write_decision(bundles: Path, decision: Decision, key: bytes | None) -> Path:
    """Append a decision; the caller holds the lock of the folder."""
    folder = bundles / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    digests = [_digest(path) for path in sorted(folder.glob("*.json"))]
    before = digests[-1] if digests else None
    named = _read_newest(folder).get("sha256")
    now = datetime.now(UTC)
    document = {
        **asdict(decision),
        "time": now.isoformat(timespec="seconds"),
        # If the newest is missing, the chain keeps the gap.
        "previous": named if named not in (None, *digests) else before,
    }
    stamp = now.strftime("%Y%m%dT%H%M%S.%fZ")
    path = folder / f"{stamp}-{decision.challenger}.json"
    write_durably(path, to_json(signed(document, key)))
    path.chmod(0o444)
    newest = {"decision": path.name, "sha256": _digest(path)}
    write_durably(folder / NEWEST, to_json(signed(newest, key)))
    return path


def _read_newest(folder: Path) -> dict[str, Any]:
    """Read which decision is the newest; empty if there is no such file, or no JSON in it."""
    try:
        found = json.loads((folder / NEWEST).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _newest_fault(folder: Path, states: dict[str, str], key: bytes | None) -> str | None:
    """Say why the newest decision cannot be vouched for; None if it can.

    Args:
        folder: Of the decisions.
        states: State of each decision's signature, by the decision's digest.
        key: Verifies the signature.
    """
    found = _read_newest(folder)
    if not found:
        return f"{folder / NEWEST} is missing or unreadable: later decisions may be missing too"
    try:
        state = check_signature(found, key, folder / NEWEST)
    except TamperedError as error:
        return str(error)
    if found.get("sha256") not in states:
        return f"the newest decision, {found.get('decision')}, is missing or was altered"
    if state != states[found["sha256"]]:
        return f"{folder / NEWEST} is {state}, the decision that it names is not"
    return None


def read_decision(path: Path, key: bytes | None) -> Written:
    """Read and verify one decision.

    Raises:
        TamperedError: It is not what was signed.
        ValueError: It is no decision.
    """
    data = path.read_bytes()
    try:
        document = json.loads(data)
        state = check_signature(document, key, path)
        fields = {name: value for name, value in document.items() if name != SIGNATURE}
        return Written(path, Decision(**fields), state, hashlib.sha256(data).hexdigest())
    except TamperedError:
        raise
    except (ValueError, TypeError, AttributeError) as error:
        raise TamperedError(
            f"{path} is not a decision of this version ({str(error).splitlines()[0]}); restore it "
            "from a backup"
        ) from error


def read_decisions(bundles: Path, key: bytes | None) -> tuple[list[Written], list[str]]:
    """Read all decisions, oldest first, and what is wrong with them.

    Returns:
        Those that can be read; a line for each that was altered, and for each gap.
    """
    folder = bundles / FOLDER
    found: list[Written] = []
    faults: list[str] = []
    previous: str | None = None
    for path in sorted(folder.glob("*.json")):
        try:
            written = read_decision(path, key)
        except ValueError as error:
            faults.append(str(error))
            previous = _digest(path)
            continue
        if written.decision.previous != previous:
            faults.append(f"a decision before {path.name} is missing or was altered")
        previous = written.digest
        found.append(written)
    last = found[-1] if found else None
    is_expected = (folder / NEWEST).exists() or (last and last.decision.format >= FORMAT)
    # If the last file cannot be verified, that was said.
    if is_expected and previous == (last.digest if last else None):
        states = {one.digest: one.state for one in found}
        if (fault := _newest_fault(folder, states, key)) is not None:
            faults.append(fault)
    return found, faults


def decision_on(bundles: Path, version: str, key: bytes | None) -> Written | None:
    """Read the latest decision on a version, or on the release that it stands on; None without.

    Raises:
        TamperedError: That file is not what was signed.
    """
    folders = (bundles / FOLDER, bundles / FOLDER / FETCHED)
    paths = [path for folder in folders for path in decisions_on(folder, version)]
    return read_decision(max(paths, key=lambda path: path.name), key) if paths else None


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
