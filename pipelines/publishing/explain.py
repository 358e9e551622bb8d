"""Decisions in plain words, each with the next step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pipelines.engine.errors import RefusedError
from pipelines.engine.signing import signing_key
from pipelines.publishing.comparison import Compared
from pipelines.tracking.decisions import Decision, append_decision
from serving.bundle.manifest import CURRENT, Verdict

ADVICE = {
    "catalogue completeness": "look for a truncated or filtered catalogue file; if items were "
    "really removed, lower release.gate.min_kept_items for one run",
    "user completeness": "look for missing partitions of events; if users were really removed, "
    "lower release.gate.min_kept_users for one run",
    "texts of": "compare the catalogue file with yesterday's by column",
    "duplicated rows": "remove the file that was delivered twice from the input folder",
    "times of": "state the events' time zone at the source and ingest the days anew",
    "events of the future": "set this machine's clock, or correct the events' time zone",
    "input of the day": "see recsys monitor; repair the input before the next run",
    "finite numbers|length of vectors": "train again with a lower learning rate; see the curves in "
    "the report",
    "index recall": "raise index.effort, or take a flat index",
    "use of": "train the semantic IDs anew with another seed, or with fewer codes",
    "load of each expert": "train the ranker anew with fewer experts",
    "calibration of|level of": "train the ranker anew; see its reliability curve in the report",
    "gain": "find out which input holds the label before anybody sees these lists",
    "sources that failed": "read the log for the first error of that source",
    "time of a list": "profile the bundle, or raise release.gate.max_latency_ms",
    "empty lists|catalogue coverage|novelty": "compare lists with recsys recommend on the refused "
    "bundle",
    "the bundle can be loaded": "run the stage again that wrote the named file",
}
WORSE = (
    "compare the input of both with recsys monitor and the reports of both runs; the champion goes "
    "on serving meanwhile"
)


def advice_for(name: str) -> str:
    """Return the advice for a failed check."""
    fitting = (text for keys, text in ADVICE.items() if name.startswith(tuple(keys.split("|"))))
    return next(fitting, WORSE)


def found_in(value: float | None, bound: float | None) -> str:
    """Format a failed check's value against its bound."""
    if bound is None:
        return "nothing was found"
    if value is None:
        return f"no value against {bound:.4g}"
    return f"{value:.4f} is {'below' if value < bound else 'above'} {bound:.4f}"


def is_untested(verdict: Mapping[str, Any]) -> bool:
    """True if a check had nothing to measure; the outcome is then configured."""
    reason = str(verdict.get("reason", ""))
    return verdict.get("value") is None and reason.startswith("not enough evidence")


def format_result(verdict: Mapping[str, Any]) -> str:
    """Format a check's result in a word or two."""
    if not verdict.get("passed"):
        return "FAILED"
    return "not tested" if is_untested(verdict) else "passed"


def describe_failed(failed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Describe failed checks, each with what to do."""
    return [
        f"{one['name']}: {found_in(one['value'], one['bound'])} ({one['reason']}). "
        f"Next: {advice_for(one['name'])}"
        for one in failed
    ]


def explain_decision(
    champion: str | None, verdicts: Sequence[Verdict], compared: Compared | None
) -> list[str]:
    """Explain why a version is published or refused."""
    failed = [one.model_dump() for one in verdicts if not one.passed]
    kept = f"{champion} goes on serving" if champion else "nothing is served"
    if failed:
        first = f"Refused: {len(failed)} of {len(verdicts)} checks failed; {kept}."
        return [first, *describe_failed(failed)]
    untested = [one for one in verdicts if is_untested(one.model_dump())]
    found = [f"All {len(verdicts)} checks passed."]
    if untested:
        found = [f"{len(verdicts) - len(untested)} checks passed, {len(untested)} was not tested."]
    if compared is not None and compared.by is not None:
        by = compared.by
        found.append(
            f"Against {champion} on {by.num_queries} equal queries: {by.decision}, "
            f"{100 * by.relative:+.1f}%."
        )
    elif champion is not None:
        why = untested[0].reason if untested else "too few queries are answered by both"
        found.append(f"Not compared with {champion}: {why}.")
    return found


def record_power(
    compared: Compared | None, deciding_metric: str
) -> dict[str, float | int | str | None]:
    """Build the record of the comparison's interval and smallest difference found."""
    by = None if compared is None else compared.by
    if by is None:
        return {}
    low, high = by.relative_interval
    values = {
        "difference": by.relative,
        "low": low,
        "high": high,
        "found_in_4_of_5_cases": by.relative_detectable,
    }
    known = {name: value if abs(value) < 1e9 else None for name, value in values.items()}
    return {"metric": deciding_metric, "users": by.num_users, **known}


def refuse(folder: Path, version: str, **about: Any) -> None:
    """Append a refusal to the log and raise it.

    Raises:
        RefusedError: Always; names each failed check with its value and bound, and what to do.
    """
    decision = Decision(outcome="refused", challenger=version, **about)
    append_decision(folder, decision, signing_key())
    current = folder / CURRENT
    kept = f"{current.resolve().name} goes on serving" if current.exists() else "nothing is served"
    raise RefusedError(
        f"the new bundle is refused and was not published; {kept}.\n"
        + "\n".join(f"  {line}" for line in describe_failed(decision.failed))
        + f"\nAll verdicts: recsys release explain {folder} {version}. The "
        "bounds are in [release] and [release.gate]."
    )
