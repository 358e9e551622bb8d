"""The part of the page about domain adapters: what each gains and harms, and which are served."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pipelines.dashboard.context import Context
from pipelines.dashboard.experts.mixture import places_of
from pipelines.dashboard.workspaces.files import UnreadableError, changed_at, names_in, read_table
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts.shapes import Dot, interval_chart
from pipelines.pages.charts.style import color_of
from pipelines.pages.columns import counts, numbers, shares, texts
from pipelines.pages.document import Block, Cell, Chart, Column, Origin, Section, Table, Words
from pipelines.pages.figure import chart_of
from recsys.layers.lora.file import CONFIG
from serving.bundle.manifest import CURRENT, bundle_directory
from serving.bundle.published import ADAPTER_MANIFEST, ADAPTERS

OUTCOMES = "adapt_domains/adapters.json"
PASSED, FAILED = "allowed", "refused"
COLORS = {PASSED: color_of(2), FAILED: color_of(5)}
NO_ADAPTERS = (
    "There are no domain adapters. Items or events need a column domain; then [adapter] "
    'domains = ["books"] adapts the released model in every run, and recsys release adapt --config '
    "shop.toml --domain books does it once."
)
USED_BY = (
    'Requests with "context": {"domain": "<name>"} use the domain\'s adapter, and their '
    "served_by.adapter names it; all others keep their results to the last bit. A domain without "
    "an adapter is answered by the base."
)
UNLIKE = (
    "This adapter was judged against the base over the whole catalogue. Much of such a gain comes "
    "from listing the domain's items alone, which needs no adapter; adapt again to compare like "
    "with like."
)
GAIN = re.compile(r"adapter adds ([+-]\S+) \(([+-]\S+) to ([+-]\d\S+?):")
"""How verdicts wrote the interval before it was stored by itself."""


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One change of a domain's metric, and the gate's verdict on it."""

    name: str
    num_users: int | None
    difference: float
    low: float | None
    high: float | None
    passed: bool


def read_outcomes(context: Context, run: Run) -> tuple[list[Mapping[str, Any]], str]:
    """Read what became of each adapter of a run, and what is wrong with the file."""
    for place in places_of(context, run):
        try:
            found = json.loads((place / OUTCOMES).read_bytes())
        except OSError:
            continue
        except ValueError as error:
            return [], f"adapters.json is no JSON: {error}"
        if isinstance(found, list) and all(isinstance(one, dict) for one in found):
            return found, ""
        return [], "adapters.json is no list of outcomes"
    return [], ""


def measured_in(outcome: Mapping[str, Any]) -> list[Measured]:
    """List the changes on held-out users, the whole domain's first.

    Older outcomes have no intervals but that of the gain, in words.
    """
    verdicts = {str(one["name"]): one for one in outcome.get("verdicts", [])}
    stored = {str(one["name"]): one for one in outcome.get("changes", [])}
    found = []
    for name, verdict in verdicts.items():
        metric, _, part = name.partition(" of ")
        if not part or verdict["value"] is None or metric.startswith("lists"):
            continue
        change = stored.get(part)
        gained = GAIN.search(str(verdict.get("reason", "")))
        low, high, users = None, None, None
        value = float(verdict["value"])
        if change is not None:
            value, low, high = change["difference"], change["low"], change["high"]
            users = change["num_users"]
        elif part.startswith("domain "):
            value -= float(verdict["bound"] or 0)
            if gained:
                value, low, high = (float(gained[place]) for place in (1, 2, 3))
        found.append(
            Measured(
                name=part.replace("_", " "),
                num_users=users,
                difference=value,
                low=low,
                high=high,
                passed=bool(verdict["passed"]),
            )
        )
    return found


def adapter_sections(
    context: Context, run: Run, origins: Sequence[Origin]
) -> tuple[list[Section], list[str]]:
    """Show the run's adapters and what is registered beside its bundles; problems come second."""
    outcomes, problem = read_outcomes(context, run)
    problems = [problem] if problem else []
    sections = []
    for outcome in outcomes:
        try:
            sections.append(_outcome_section(outcome, origins))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problems.append(f"an adapter's outcome cannot be read: {type(error).__name__}: {error}")
    registered, unreadable = read_registered(run)
    problems += unreadable
    blocks: list[Block] = []
    if registered:
        blocks.append(_registered_table(registered, origins))
    words = USED_BY if registered or outcomes else NO_ADAPTERS
    blocks.append(Words(lines=[words]))
    sections.append(Section(key="adapters", title="Registered adapters", blocks=blocks))
    return sections, problems


def _outcome_section(outcome: Mapping[str, Any], origins: Sequence[Origin]) -> Section:
    domain, changes = str(outcome["domain"]), measured_in(outcome)
    refused = outcome.get("refused")
    if refused:
        words = Words(lines=[f"Refused; the base answers the domain. {refused}"], tone="bad")
    else:
        words = Words(lines=[f"Passed the gate, registered as {outcome['adapter']}."], tone="good")
    blocks: list[Block] = [words, _values_table(domain, outcome, origins)]
    if "base_within_domain" not in outcome.get("metrics", {}):
        blocks.append(Words(lines=[UNLIKE], tone="bad"))
    if changes:
        blocks.append(chart_of(change_figure(domain, changes), origins))
    if verdicts := outcome.get("verdicts"):
        blocks.append(_verdict_table(domain, verdicts, origins))
    return Section(key=f"adapter-{domain}", title=f"Adapter of {domain}", blocks=blocks)


def _values_table(domain: str, outcome: Mapping[str, Any], origins: Sequence[Origin]) -> Table:
    names = {
        "base_within_domain": "base, the domain's items alone",
        "adapter_within_domain": "adapter, the domain's items alone",
        "base": "base, whole catalogue",
        "adapter": "adapter, whole catalogue",
    }
    values = outcome.get("metrics", {})
    metrics = sorted({metric for own in values.values() for metric in own})
    return Table(
        key=f"values-{domain}",
        title=f"{domain}: base and adapter",
        note="Only the two over the domain's items alone compare like with like: a surface that "
        "restricts lists to the domain needs no adapter for that.",
        columns=[
            *texts("list"),
            *(Column(label=metric, numeric=True, format="metric") for metric in metrics),
        ],
        rows=[
            (label, *(values[name].get(metric) for metric in metrics))
            for name, label in names.items()
            if name in values
        ],
        origins=origins,
    )


def change_figure(domain: str, changes: Sequence[Measured]) -> Chart:
    """Draw the change of the domain and of each protected slice with its interval."""
    dots, rows = [], []
    for one in changes:
        series = PASSED if one.passed else FAILED
        known = one.low is not None and one.high is not None
        interval = f"{one.low:+.4f} to {one.high:+.4f}" if known else "no interval stored"
        note = f"{one.name} \u00b7 {one.difference:+.4f} ({interval}), {series}"
        dots.append(
            Dot(
                label=one.name,
                series=series,
                mean=one.difference,
                low=one.difference if one.low is None else one.low,
                high=one.difference if one.high is None else one.high,
                note=note,
            )
        )
        users = "" if one.num_users is None else f"{one.num_users:,}"
        rows.append((one.name, users, f"{one.difference:+.4f}", interval, series))
    colors = {name: color for name, color in COLORS.items() if name in {dot.series for dot in dots}}
    harmed = [one.name for one in changes if not one.passed]
    gained = f"{changes[0].difference:+.4f}"
    title = f"{domain}: {gained} over the base"
    return Chart(
        key=f"changes-{domain}",
        title=f"{title}; the gate refuses {', '.join(harmed)}" if harmed else title,
        note="Change of the metric on held-out users, over the domain's items alone, with paired "
        "97.5% intervals. The gate wants a gain of the domain and allows slices what chance "
        "explains.",
        description=f"Change that the adapter of {domain} makes for the domain and its slices.",
        spec=interval_chart(
            dots,
            colors,
            x_title="change of the metric",
            labels=[dot.label for dot in dots],
            rule_at=0,
        ),
        legend=colors,
        columns=("users", "count", "change", "interval", "gate"),
        rows=rows,
    )


def _verdict_table(
    domain: str, verdicts: Sequence[Mapping[str, Any]], origins: Sequence[Origin]
) -> Table:
    return Table(
        key=f"verdicts-{domain}",
        title=f"{domain}: the gate's verdicts",
        note="A check passes where its value reaches the bound.",
        columns=[
            *texts("check"),
            *numbers("value", "bound", format="metric"),
            *texts("passed", "why"),
        ],
        rows=[
            (
                one["name"],
                one["value"],
                one["bound"],
                "yes" if one["passed"] else "no",
                one.get("reason", ""),
            )
            for one in verdicts
        ],
        origins=origins,
    )


def read_registered(run: Run) -> tuple[list[tuple[Cell, ...]], list[str]]:
    """List the adapters beside a run's bundles, each domain's newest first, and the problems."""
    folder = run.bundles_folder
    served_base = (folder / CURRENT).resolve().name.partition("+")[0]
    rows, problems = [], []
    for domain in names_in(folder / ADAPTERS):
        place = folder / ADAPTERS / domain
        current = (place / CURRENT).resolve()
        found = []
        for path in _adapters_in(place):
            try:
                found.append(_registered(path, path.resolve() == current, served_base))
            except (UnreadableError, KeyError, TypeError, AttributeError, ValueError) as error:
                name = unquote(domain.removeprefix("domain-"))
                problems.append(f"adapter {path.name} of {name} cannot be read: {error}")
        rows += sorted(found, key=lambda row: str(row[-1]), reverse=True)
    return rows, problems


def _adapters_in(place: Path) -> Iterator[Path]:
    return (place / name for name in names_in(place) if name.startswith("adapter-"))


def _registered(path: Path, is_current: bool, served_base: str) -> tuple[Cell, ...]:
    made = read_table(path / ADAPTER_MANIFEST)
    if made is None:
        raise UnreadableError(f"{ADAPTER_MANIFEST} is missing")
    settings = read_table(path / CONFIG) or {}
    of_base = bundle_directory(path, made["base_version"]).name == served_base
    state = "registered"
    if is_current:
        state = "served" if of_base else "of another base: not served"
    metrics = made.get("metrics", {})
    before, after = (
        next(iter(metrics.get(f"{name}_within_domain", {}).values()), None)
        for name in ("base", "adapter")
    )
    gain = None if before is None or after is None else after - before
    verdicts = made.get("verdicts", [])
    passed = sum(bool(one["passed"]) for one in verdicts)
    time = changed_at(path / ADAPTER_MANIFEST)
    return (
        str(made["domain"]),
        str(made["version"]),
        state,
        str(made["base"]).replace("_", "-"),
        str(made["base_version"]),
        settings.get("r"),
        made.get("num_parameters"),
        made.get("share"),
        gain,
        f"{passed} of {len(verdicts)}",
        None if time is None else time.isoformat(),
    )


def _registered_table(rows: Sequence[Sequence[Cell]], origins: Sequence[Origin]) -> Table:
    return Table(
        key="registered",
        title="Adapters beside the bundles",
        note="An adapter fits only the weights that it was trained on: of a later release it is "
        "refused, and the base answers its domain. Size: share of the base's parameters.",
        columns=[
            *texts("domain", "version", "state", "base", "of bundle"),
            *counts("rank", "parameters"),
            *shares("size"),
            *numbers(
                "gain", format="signed", note="over the base, both over the domain's items alone"
            ),
            *texts("checks passed"),
            Column(label="registered", format="time"),
        ],
        rows=rows,
        origins=origins,
    )
