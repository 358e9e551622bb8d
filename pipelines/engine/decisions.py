"""Log of decisions on releases; with the bundles and the link it is the state of release.

    <bundles>/bundle-<version>/   what can be served; in refused/ the bundle refused last
    <bundles>/current             link to the bundle that is served
    <bundles>/releases.jsonl      a decision a line, each with the digest of the line before it
    <bundles>/releases.head       digest of the last line, signed if a key is set

A line is appended for each release, refusal, promotion, rollback and appended delta, and never
changed. A removed line leaves a gap in the chain of digests, or does not match the head.

Lines are signed by HMAC-SHA256 over their JSON with sorted keys. The key is the variable
RECSYS_SIGNING_KEY, or the content of the file that RECSYS_SIGNING_KEY_FILE names. It is never
printed nor written; a signature names it by the first digits of its own hash.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from features.forget_list import secret
from pipelines.engine.artifacts import write_json
from recsys.data.durable import append_line

KEY, KEY_FILE = "RECSYS_SIGNING_KEY", "RECSYS_SIGNING_KEY_FILE"
ALGORITHM = "hmac-sha256"
SIGNATURE = "signature"
LOG, HEAD = "releases.jsonl", "releases.head"
CHAMPION, CHALLENGER = "champion", "challenger"
ALTERED = "altered"


class TamperedError(ValueError):
    """A signed document was altered."""


def signing_key() -> bytes | None:
    """Read the key; None where none is set."""
    return secret(KEY, KEY_FILE, "signing key")


def signed(document: Mapping[str, Any], key: bytes | None) -> dict[str, Any]:
    """Add the signature; null where there is no key."""
    body = {name: value for name, value in document.items() if name != SIGNATURE}
    if key is None:
        return {**body, SIGNATURE: None}
    value = _code(body, key)
    return {**body, SIGNATURE: {"algorithm": ALGORITHM, "key": key_name(key), "value": value}}


def check_signature(document: Mapping[str, Any], key: bytes | None, where: Path | str) -> str:
    """Verify a document; return ``unsigned``, ``not verified`` or ``signed``."""
    found = document.get(SIGNATURE)
    if found is None:
        return "unsigned"
    if key is None:
        return "not verified"
    value = found.get("value") if isinstance(found, dict) else None
    body = {name: one for name, one in document.items() if name != SIGNATURE}
    if isinstance(value, str) and hmac.compare_digest(value, _code(body, key)):
        return "signed"
    named = str(found.get("key", "?")) if isinstance(found, dict) else "?"
    if named != key_name(key):
        raise TamperedError(
            f"{where} was signed with key {named}, the one that is set is {key_name(key)}; set "
            f"{KEY} to that key, or decide again with --force"
        )
    raise TamperedError(
        f"{where} was altered after it was signed; restore it from a backup and find out who "
        "changed it"
    )


def key_name(key: bytes) -> str:
    """Return a short name of a key that does not reveal it."""
    return hashlib.sha256(b"recsys signing key:" + key).hexdigest()[:8]


def _code(body: Mapping[str, Any], key: bytes) -> str:
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


STATES = {
    "signed": "signed",
    "unsigned": "unsigned",
    "not verified": "signed, no key to verify",
    ALTERED: "NOT VALID",
}
"""The state of a line, in words."""
Outcome = Literal[
    "released",
    "kept as challenger",
    "refused",
    "promoted",
    "rolled back",
    "appended",
    "taken from the registry",
    "fetched",
]
ACTIONS: dict[str, Outcome] = {
    "release": "released",
    "promote": "promoted",
    "rollback": "rolled back",
    "append": "appended",
    "registry": "taken from the registry",
}
"""Outcomes that make a version champion, by the action that did."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A decision on one version, with its reasons."""

    time: str = ""
    outcome: Outcome
    challenger: str
    """Version that was decided on."""
    champion: str | None
    """Version that was served before."""
    serves: str | None = None
    """Version that the link names afterwards, if the decision moved it."""
    challenger_digest: str | None
    """Digest of the bundle's manifest; None if no bundle could be written."""
    config_digest: str = ""
    verdicts: list[dict[str, Any]] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    forced: bool = False
    """True if a person published it though it was refused or has no decision."""
    previous: str | None = None

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The verdicts that did not pass."""
        return [one for one in self.verdicts if not one["passed"]]

    @property
    def why(self) -> str:
        """The checks that failed, or else the last words."""
        failed = ", ".join(str(one.get("name")) for one in self.verdicts if not one.get("passed"))
        last = str(self.words[-1]) if self.words else ""
        return f"failed: {failed}" if failed else last

    @property
    def alias(self) -> str | None:
        """The alias that began to name `version`; None if none was moved."""
        if self.serves is not None and self.outcome in ACTIONS.values():
            return CHAMPION
        return CHALLENGER if self.outcome == "kept as challenger" else None

    @property
    def version(self) -> str:
        """Version that is served afterwards, or else the one that was decided on."""
        return self.serves or self.challenger


@dataclass(frozen=True, kw_only=True)
class Written:
    """A line of the log."""

    name: str
    decision: Decision
    state: str
    """``signed``, ``unsigned``, ``not verified`` or ``altered``."""
    digest: str
    fault: str = ""
    """Reason why it cannot be trusted."""


def describe_decision(written: Written, bundles: Path) -> list[str]:
    """Describe a decision for an operator, a line a fact."""
    decision = written.decision
    forced = ", by force" if decision.forced else ""
    lines = [
        f"{decision.challenger}: {decision.outcome}{forced} at {decision.time}",
        f"champion before it: {decision.champion or 'none'}; "
        f"decision {written.name} ({STATES[written.state]})",
        "",
        *map(str, decision.words),
    ]
    if decision.outcome == "refused":
        lines += [
            "",
            f"The bundle is kept in {bundles / 'refused'} until the next "
            "refusal. After the cause is repaired, run recsys run. To serve it all the same: "
            f"recsys release promote {bundles} {decision.challenger} --force",
        ]
    passed = [str(one.get("name")) for one in decision.verdicts if one.get("passed")]
    return [*lines, "", f"Passed ({len(passed)}): {', '.join(passed)}"] if passed else lines


def read_lines(bundles: Path) -> list[str]:
    """Read the complete lines of the log, oldest first, without one that a kill cut off."""
    try:
        text = (bundles / LOG).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line for line in text.split("\n")[:-1] if _is_json(line)]


def _is_json(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


def append_decision(bundles: Path, decision: Decision, key: bytes | None) -> Decision:
    """Append a decision; the caller holds the lock of the folder."""
    bundles.mkdir(parents=True, exist_ok=True)
    lines = read_lines(bundles)
    digests = [hash_line(line) for line in lines]
    named = _read_head(bundles).get("sha256")
    # If the head's line is gone, the chain keeps the gap.
    is_gap = named is not None and named not in digests
    document = {
        **asdict(decision),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "previous": named if is_gap else digests[-1] if digests else None,
    }
    line = json.dumps(signed(document, key), sort_keys=True)
    append_line(bundles / LOG, line)
    write_json(bundles / HEAD, signed({"sha256": hash_line(line)}, key))
    return Decision(**document)


def hash_line(line: str) -> str:
    """Compute the sha256 of a line."""
    return hashlib.sha256(line.encode()).hexdigest()


def _read_head(bundles: Path) -> dict[str, Any]:
    """Read which line is the last; empty without a file, or without JSON in it."""
    try:
        found = json.loads((bundles / HEAD).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_line(line: str, key: bytes | None, name: str) -> Written:
    """Read and verify one line; an altered one has the state ``altered`` and the fault."""
    document: Any = {}
    try:
        document = json.loads(line)
        state, fault = check_signature(document, key, name), ""
        known = {one.name for one in fields(Decision)}
        decision = Decision(**{key: one for key, one in document.items() if key in known})
    except (ValueError, TypeError, AttributeError) as error:
        fault, state = str(error).splitlines()[0], ALTERED
        if not isinstance(error, TamperedError):
            fault = f"{name} is not a decision of this version ({fault}); restore it from a backup"
        claims = document if isinstance(document, dict) else {}
        texts = {name: str(claims.get(name, "")) for name in ("time", "outcome", "challenger")}
        decision = Decision(**texts, champion=None, challenger_digest=None)  # type: ignore[arg-type]
    return Written(name=name, decision=decision, state=state, digest=hash_line(line), fault=fault)


def read_decisions(bundles: Path, key: bytes | None) -> tuple[list[Written], list[str]]:
    """Read all decisions, oldest first, and a fault for each altered or missing line."""
    found: list[Written] = []
    faults: list[str] = []
    previous: str | None = None
    for number, line in enumerate(read_lines(bundles), 1):
        one = read_line(line, key, f"{bundles / LOG}, line {number}")
        found.append(one)
        if one.fault:
            faults.append(one.fault)
        elif one.decision.previous != previous:
            faults.append(f"a decision before line {number} is missing or was altered")
        previous = one.digest
    # If the last line cannot be verified, that was said.
    is_known = not found or not found[-1].fault
    if is_known and (fault := _head_fault(bundles, found, key)) is not None:
        faults.append(fault)
    return found, faults


def _head_fault(bundles: Path, found: Sequence[Written], key: bytes | None) -> str | None:
    """Explain why the newest decision cannot be vouched for; None if it can."""
    head, path = _read_head(bundles), bundles / HEAD
    if not head:
        missing = f"{path} is missing or unreadable: later decisions may be missing too"
        return missing if found or path.exists() else None
    try:
        state = check_signature(head, key, path)
    except TamperedError as error:
        return str(error)
    # A kill may leave the head one line short.
    for one in found[-2:]:
        if one.digest == head.get("sha256"):
            unlike = one.state not in (state, ALTERED)
            return f"{path} is {state}, the decision that it names is not" if unlike else None
    return "the newest decision is missing or was altered"


def decision_on(bundles: Path, version: str, key: bytes | None) -> Written | None:
    """Read the latest decision on a version, or on the release that it was appended to, or None.

    Raises:
        TamperedError: That line is not the signed one.
    """
    names = (version, version.partition("+")[0])
    for number, line in reversed(list(enumerate(read_lines(bundles), 1))):
        one = read_line(line, key, f"{bundles / LOG}, line {number}")
        if one.decision.challenger in names:
            if one.fault:
                raise TamperedError(one.fault)
            return one
    return None


def history(bundles: Path) -> list[Decision]:
    """List the decisions that moved an alias, oldest first."""
    decisions = (read_line(line, None, "").decision for line in read_lines(bundles))
    return [one for one in decisions if one.alias is not None]


def read_champions(bundles: Path, served: str | None) -> list[str]:
    """List the champions that a rollback can go back to, the served one last."""
    stack: list[str] = []
    for change in history(bundles):
        if change.alias == CHAMPION:
            stack = _moved(stack, change.champion, goes_back=True)
            stack = _moved(stack, change.version, goes_back=change.outcome == "rolled back")
    return _moved(stack, served, goes_back=True)


def _moved(stack: list[str], version: str | None, *, goes_back: bool) -> list[str]:
    if version is None:
        return stack
    if goes_back and version in stack:
        return stack[: len(stack) - stack[::-1].index(version)]
    return stack if stack[-1:] == [version] else [*stack, version]


def read_challenger(bundles: Path) -> str | None:
    """Return the last released version that did not become champion; None without one."""
    waiting = None
    for change in history(bundles):
        if change.alias == CHALLENGER:
            waiting = change.version
        elif change.version == waiting:
            waiting = None
    return waiting
