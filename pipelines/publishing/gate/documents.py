"""What other commands found: the parity of serving, alarms of the monitor."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pipelines.publishing.gate.subject import Subject, at_most, warning
from serving.bundle.manifest import Verdict

PARITY = Path("parity") / "parity.json"
MONITOR = Path("monitoring") / "monitor.json"
DATA_GROUPS = ("volume", "input")
"""Signals by which data are missing, not only different."""
MAX_AGE_SECONDS = 2 * 86_400


def read_document(subject: Subject, path: Path) -> dict[str, Any]:
    """Read a document of the workspace; empty where there is none.

    Raises:
        ValueError: Names the file that cannot be read.
    """
    whole = None if subject.workspace is None else subject.workspace / path
    if whole is None or not whole.is_file():
        return {}
    try:
        found = json.loads(whole.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(
            f"{whole} is not JSON ({error}); run its command anew, or delete it"
        ) from None
    return found if isinstance(found, dict) else {}


def parity(subject: Subject) -> Iterator[Verdict]:
    """Refuse while what was served cannot be recomputed from the artefacts.

    Requests of an earlier bundle only warn: their difference may be repaired in this one.
    """
    document = read_document(subject, PARITY)
    recomputed = int(document.get("recomputed") or 0)
    if not recomputed:
        return
    share = 1 - int(document.get("equal") or 0) / recomputed
    reason = f"share of {recomputed} logged requests whose recomputed list differs"
    differences = document.get("differences") or []
    if share and differences:
        reason += f"; first: {json.dumps(differences[:1], ensure_ascii=False)[:200]}"
    bundle = str(document.get("bundle") or "")
    served = None if subject.champion is None else subject.champion.version
    if served is not None and bundle not in ("", served):
        yield warning("parity of serving", f"measured on bundle {bundle}: {reason}", share)
        return
    yield at_most("parity of serving", share, subject.config.max_parity_differences, reason)


def drift(subject: Subject) -> Iterator[Verdict]:
    """Refuse while much of the input is missing; drift that models can learn only warns."""
    document = read_document(subject, MONITOR)
    if not document or not is_recent(document, subject.now):
        return
    signals = [one for one in document.get("signals") or [] if isinstance(one, dict)]
    raised = [one for one in signals if one.get("alarm")]
    missing = [one for one in raised if is_missing(one)]
    others = [one for one in raised if one not in missing]
    others += [one for one in document.get("freshness") or [] if one.get("alarm")]
    reason = "signals of recsys monitor that say that part of the input is missing"
    if missing:
        reason += f": {titles(missing)}; repair the input, then run recsys monitor"
    yield at_most("input of the day", len(missing), 0, reason)
    if others:
        yield warning("drift", f"alarms that do not say the data are broken: {titles(others)}")


def is_missing(signal: dict[str, Any]) -> bool:
    """Whether a signal says that there are far fewer events or users than usual."""
    value, low = signal.get("value"), signal.get("low")
    if signal.get("drift") or signal.get("group") not in DATA_GROUPS:
        return False
    return value is not None and low is not None and float(value) < float(low)


def is_recent(document: dict[str, Any], now: float) -> bool:
    """Whether the monitor ran within two days; an older alarm says nothing of this input."""
    try:
        moment = datetime.fromisoformat(str(document.get("as_of"))).astimezone(UTC)
    except ValueError:
        return False
    return abs(now - moment.timestamp()) <= MAX_AGE_SECONDS


def titles(signals: Sequence[dict[str, Any]]) -> str:
    """Name signals."""
    return ", ".join(str(one.get("title") or one.get("name")) for one in signals)
