"""Summarise the runs of a card: means, deviations, bands, goals, and the literature's rows.

Axes: none; everything is one number a run.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from tests.benchmarks.reproduction.card import Band, Card, PublishedRow

Result = Mapping[str, Any]
SHOWN = ("recall@10", "ndcg@10")


class OutOfBand(NamedTuple):
    """A mean that is not where the card expects it."""

    band: Band
    value: float

    def text(self) -> str:
        """Say what is wrong in one line."""
        band = self.band
        low, high = band.mean - band.tolerance, band.mean + band.tolerance
        return (
            f"{band.row} {band.metric} ({band.order} order) is {self.value:.4f}, expected "
            f"{low:.4f} to {high:.4f}"
        )


def summary_of(name: str, card: Card, results: Sequence[Result]) -> dict[str, Any]:
    """Gather the results of all orders and seeds into one document.

    Args:
        name: Of the card.
        card: Bands, goals and title.
        results: One of each order and seed, of one protocol.
    """
    first = results[0]
    split = "test" if "test" in first["splits"] else "validation"
    orders = {order: rows_of(results, order, split) for order in ordered(results)}
    invalid = [one["invalid_ids"] for one in results if one.get("invalid_ids") is not None]
    return {
        "card": name,
        "title": card.title,
        "date": datetime.now(UTC).date().isoformat(),
        "protocol": card.protocol,
        "split": split,
        "data_set": first["data_set"],
        "data_digest": first["data_digest"],
        "recipe": first["recipe"],
        "device": sorted({one["device"] for one in results}),
        "seconds": {f"{one['order']}-{one['seed']}": one["seconds"] for one in results},
        "seeds": sorted({one["seed"] for one in results}),
        "shown": list(SHOWN),
        "invalid_ids": max(invalid) if invalid else None,
        "orders": orders,
        "goals": list(goals_of(card, orders)),
        "missing": [
            f"{row} ({order} order)"
            for order in card.orders
            for row in card.rows
            if row not in orders.get(order, {})
        ],
    }


def ordered(results: Sequence[Result]) -> list[str]:
    """List the orders of tied times that were run, the literature's first."""
    return sorted({one["order"] for one in results}, key=lambda order: (order != "given", order))


def rows_of(results: Sequence[Result], order: str, split: str) -> dict[str, dict[str, Any]]:
    """Mean, deviation and single values of each row's metrics in one order."""
    own = [one for one in results if one["order"] == order]
    rows: dict[str, dict[str, Any]] = {}
    for row in dict.fromkeys(row for one in own for row in one["rows"]):
        # A run that was cut short has some of the rows.
        found = [one["rows"][row][split] for one in own if row in one["rows"]]
        metrics = {}
        for metric in found[0]:
            values = [numbers[metric] for numbers in found]
            metrics[metric] = {
                "mean": statistics.mean(values),
                "deviation": statistics.stdev(values) if len(values) > 1 else None,
                "values": values,
            }
        rows[row] = metrics
    return rows


def goals_of(card: Card, orders: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Compare the literature's order with what the project set out to reach."""
    rows = next(iter(orders.values()))
    for row, wanted in card.goals.items():
        for metric, goal in wanted.items():
            if metric in rows.get(row, {}):
                value = rows[row][metric]["mean"]
                yield {
                    "row": row,
                    "metric": metric,
                    "goal": goal,
                    "value": value,
                    "met": value >= goal,
                }


def out_of_band(card: Card, summary: Mapping[str, Any]) -> list[OutOfBand]:
    """Find the means of test that are not where the card expects them.

    Rows and orders that were not run are not judged, and validation never is.
    """
    if summary["split"] != "test":
        return []
    wrong = []
    for band in card.expected:
        seen = summary["orders"].get(band.order, {}).get(band.row, {}).get(band.metric)
        if seen is not None and not band.holds(seen["mean"]):
            wrong.append(OutOfBand(band, seen["mean"]))
    return wrong


def expected_toml(summary: Mapping[str, Any], *, least: float = 0.001, spread: float = 4) -> str:
    """Write the bands that these runs would set, as a card has them.

    A band is ``spread`` deviations of a seed to either side, at least a share of 2% and ``least``:
    other devices and versions of torch add up differently.
    """
    lines = []
    for order, rows in summary["orders"].items():
        for row, metrics in rows.items():
            for metric in (metric for metric in summary["shown"] if metric in metrics):
                mean, deviation = metrics[metric]["mean"], metrics[metric]["deviation"] or 0.0
                tolerance = max(least, spread * deviation, 0.02 * mean)
                lines += [
                    "[[expected]]",
                    f'order = "{order}"',
                    f'row = "{row}"',
                    f'metric = "{metric}"',
                    f"mean = {mean:.4f}",
                    f"tolerance = {tolerance:.4f}\n",
                ]
    return "\n".join(lines)


def published_rows(
    card: Card, published: Sequence[PublishedRow], *, run_here: bool = False
) -> list[tuple[PublishedRow, tuple[float, ...]]]:
    """List others' models with their numbers in the card's column, best last.

    Args:
        card: Names the column.
        published: Of all columns.
        run_here: Whether to list libraries that were run on our own queries, not the literature.
    """
    if card.published is None:
        return []
    rows = [
        (row, row.numbers[card.published])
        for row in published
        if card.published in row.numbers and bool(row.fitted_on) == run_here
    ]
    return sorted(rows, key=lambda row: row[1][0])
