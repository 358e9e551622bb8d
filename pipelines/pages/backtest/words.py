"""A backtest in words: what retraining is worth, and how the served list compares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pipelines.pages.wording import metric_label, model_label

Document = Mapping[str, Any]
SERVED, PEER = "served", "peer"
TWO_SIDED = 1.96
POLICY_NAMES = {
    "full": "retrained before every step",
    "incremental": "updated before every step",
    "never": "never retrained",
}


def summary_of(document: Document, policy: str, row: str) -> Mapping[str, Any] | None:
    """Find a row of the summary."""
    found = (one for one in document["summary"] if (one["policy"], one["row"]) == (policy, row))
    return next(found, None)


def value_of(document: Document, one: Mapping[str, Any]) -> float:
    """Return a row's mean of the document's metric."""
    return float(one["metrics"][document["metric"]])


def served_rows(document: Document) -> list[Mapping[str, Any]]:
    """List the served row of each policy."""
    found = (summary_of(document, policy, SERVED) for policy in document["policies"])
    return [one for one in found if one is not None]


def peers_of(document: Document) -> list[Mapping[str, Any]]:
    """List peers that answered every step, best first."""
    peers = [one for one in document["summary"] if one["policy"] == PEER]
    return sorted(peers, key=lambda one: -value_of(document, one))


def whole_peers(document: Document) -> list[Mapping[str, Any]]:
    """List peers that answered every step, best first; others are not comparable."""
    return [one for one in peers_of(document) if one["num_steps"] == len(document["steps"])]


def fit_seconds(document: Document, policy: str) -> float:
    """Add up what the models of a policy took to fit, behind the first step that all share."""
    return sum(
        float(row["fit_seconds"])
        for row in document["rows"]
        if row["policy"] == policy and "error" not in row and row["step"] > 1
    )


def words_of(document: Document) -> list[str]:
    """Write the paragraphs at the top of the page."""
    return [*freshness_words(document), *lead_words(document), *peer_words(document)]


def freshness_words(document: Document) -> list[str]:
    """Compare each policy with retraining before every step."""
    rows = {one["policy"]: one for one in served_rows(document)}
    if "full" not in rows or len(rows) < 2:
        return []
    full = value_of(document, rows["full"])
    cost = fit_seconds(document, "full")
    metric = metric_label(document["metric"])
    first, last = document["steps"][0], document["steps"][-1]
    parts = []
    for policy, row in rows.items():
        if policy == "full":
            continue
        value = value_of(document, row)
        share = fit_seconds(document, policy) / cost if cost else 0.0
        relative = f"{value / full - 1:+.1%}" if full else "no comparison"
        parts.append(
            f"{value:.4f} if {POLICY_NAMES[policy]} ({relative}, with {share:.0%} of the training "
            "time)"
        )
    return [
        f"{metric} of the served list, mean of {len(document['steps'])} steps from "
        f"{first['begin'][:10]} to {last['end'][:10]}: {full:.4f} if models are "
        f"{POLICY_NAMES['full']}; {'; '.join(parts)}.",
        *age_words(document),
    ]


def age_words(document: Document) -> list[str]:
    """Say how fast models age."""
    ages = relative_to_full(document, "never")
    if len(ages) < 3:
        return []
    _, age, share = ages[-1]
    half = next((days for _, days, one in ages if one < 0.9), None)
    early = "" if half is None else f" The loss first exceeds 10% at {half:,.0f} days."
    return [
        f"Models {age:,.0f} days old reach {share:.0%} of the "
        f"{metric_label(document['metric'])} of freshly trained ones.{early}"
    ]


def relative_to_full(document: Document, policy: str) -> list[tuple[int, float, float]]:
    """List step, age of the models in days, and the share of ``full``'s quality."""
    metric = document["metric"]
    of_row = {
        (row["policy"], row["step"]): row
        for row in document["rows"]
        if row["row"] == SERVED and "error" not in row
    }
    found = []
    for step in document["steps"]:
        own, full = of_row.get((policy, step["number"])), of_row.get(("full", step["number"]))
        if own and full and full["metrics"][metric] > 0:
            share = own["metrics"][metric] / full["metrics"][metric]
            found.append((step["number"], own["model_age_days"], share))
    return found


def lead_words(document: Document) -> list[str]:
    """Compare the served list with its best source."""
    found = []
    for lead in document["leads"][:1]:
        below = [one["step"] for one in lead["steps"] if one["difference"] < -one["standard_error"]]
        high = TWO_SIDED * lead["standard_error"]
        text = (
            f"The served list is {'above' if lead['difference'] >= 0 else 'below'} its best "
            f"single source, {model_label(lead['member'])}, by {abs(lead['difference']):.4f} "
            f"(95% interval ± {high:.4f})"
        )
        if below:
            text += (
                f"; on {len(below)} of {len(lead['steps'])} steps "
                f"({', '.join(map(str, below))}) the best source of that step was above it by more "
                "than one standard error"
            )
        else:
            text += (
                f"; on none of {len(lead['steps'])} steps was a source above it by more than one "
                "standard error"
            )
        found.append(text + ".")
    return found


def peer_words(document: Document) -> list[str]:
    """Compare with the best peer that answered every step."""
    served, peers = served_rows(document), whole_peers(document)
    if not served or not peers:
        return []
    ours, best = value_of(document, served[0]), value_of(document, peers[0])
    ratio = f" ({ours / best:.2f} times)" if best > 0 else ""
    return [
        f"Best of {len(peers)} models of other libraries (peers) on the same queries: "
        f"{peers[0]['row']} with {best:.4f}; the served list has {ours:.4f}{ratio}."
    ]


def lines_of(document: Document) -> list[str]:
    """Write the end of the command: a table, then the words."""
    metrics = list(document["summary"][0]["metrics"])
    head = ["policy", "list", *(metric_label(name) for name in metrics), "training, s"]
    rows = [
        [
            one["policy"],
            model_label(one["row"]),
            *(f"{one['metrics'][name]:.4f}" for name in metrics),
            f"{one['fit_seconds']:,.1f}",
        ]
        for one in document["summary"]
        if one["row"] == SERVED or one["policy"] in (PEER, "full")
    ]
    return [*aligned([head, *rows]), "", *document["words"]]


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Lay cells out in columns, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        texts = [cell.ljust(width) for cell, width in zip(row[:2], widths, strict=False)]
        numbers = [cell.rjust(width) for cell, width in zip(row[2:], widths[2:], strict=True)]
        lines.append("  ".join([*texts, *numbers]))
    return lines
