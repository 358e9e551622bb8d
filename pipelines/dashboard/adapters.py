"""Domain adapters of a run: verdicts, values, changes, and those registered with its bundles."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from pipelines.dashboard.context import Context
from pipelines.dashboard.workspaces.files import UnreadableError, changed_at, names_in, read_table
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts import (
    color_of,
    counts,
    figure,
    interval_chart,
    numbers,
    shares,
    texts,
)
from pipelines.pages.document import Block, Cell, Column, Section, Table, Words
from recsys.layers.lora.file import CONFIG
from serving.bundle.manifest import CURRENT, bundle_directory
from serving.bundle.published import ADAPTER_MANIFEST, ADAPTERS

OUTCOMES = "adapt_domains/adapters.json"
COLORS = {"allowed": color_of(2), "refused": color_of(5)}
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
LISTS = {
    "base_within_domain": "base, the domain's items alone",
    "adapter_within_domain": "adapter, the domain's items alone",
    "base": "base, whole catalogue",
    "adapter": "adapter, whole catalogue",
}


def list_places(context: Context, run: Run) -> Iterator[Path]:
    """List the folders in which the stages of a run may be, the likeliest first."""
    if run.kind == "workspace":
        yield run.path
        return
    maker, kept = context.stores.maker(run), context.stores.kept_stages(run)
    if maker is not None and kept is not None:
        yield kept
        if maker.bundles[:1] == (kept.name,):
            yield maker.path


def _read_outcomes(context: Context, run: Run) -> tuple[list[Mapping[str, Any]], list[str]]:
    """Read the outcome of each adapter of a run, and the faults of the file."""
    for place in list_places(context, run):
        try:
            found = json.loads((place / OUTCOMES).read_bytes())
        except OSError:
            continue
        except ValueError as error:
            return [], [f"adapters.json is no JSON: {error}"]
        if isinstance(found, list) and all(isinstance(one, dict) for one in found):
            return found, []
        return [], ["adapters.json is no list of outcomes"]
    return [], []


def adapter_sections(context: Context, run: Run) -> tuple[list[Section], list[str]]:
    """Show the run's adapters and those registered with its bundles; problems come second."""
    outcomes, problems = _read_outcomes(context, run)
    sections = []
    for outcome in outcomes:
        try:
            domain, blocks = str(outcome["domain"]), list(_outcome_blocks(outcome))
            title = f"Adapter of {domain}"
            sections.append(Section(key=f"adapter-{domain}", title=title, blocks=blocks))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            problems.append(f"an adapter's outcome cannot be read: {type(error).__name__}: {error}")
    registered, unreadable = _read_registered(run)
    words = Words(lines=[USED_BY if registered or outcomes else NO_ADAPTERS])
    blocks = [*([_registered_table(registered)] if registered else []), words]
    sections.append(Section(key="adapters", title="Registered adapters", blocks=blocks))
    return sections, [*problems, *unreadable]


def _outcome_blocks(outcome: Mapping[str, Any]) -> Iterator[Block]:
    """Show an adapter's verdict, its values, its changes and the gate's checks."""
    domain, refused = str(outcome["domain"]), outcome.get("refused")
    if refused:
        yield Words(lines=[f"Refused; the base answers the domain. {refused}"], tone="bad")
    else:
        yield Words(lines=[f"Passed the gate, registered as {outcome['adapter']}."], tone="good")
    values, verdicts = outcome.get("metrics", {}), outcome.get("verdicts", [])
    metrics = sorted({metric for own in values.values() for metric in own})
    yield Table(
        key=f"values-{domain}",
        title=f"{domain}: base and adapter",
        note="Only the two over the domain's items alone compare like with like: a surface that "
        "restricts lists to the domain needs no adapter for that.",
        columns=[*texts("list"), *numbers(*metrics, format="metric")],
        rows=[
            (label, *(values[name].get(metric) for metric in metrics))
            for name, label in LISTS.items()
            if name in values
        ],
    )
    if "base_within_domain" not in values:
        yield Words(lines=[UNLIKE], tone="bad")
    yield from _changes_chart(domain, outcome.get("changes", []), verdicts)
    if verdicts:
        yield Table(
            key=f"verdicts-{domain}",
            title=f"{domain}: the gate's verdicts",
            note="A check passes if its value reaches the bound.",
            columns=[
                *texts("check"),
                *numbers("value", "bound", format="metric"),
                *texts("passed", "why"),
            ],
            rows=[
                (
                    *(one["name"], one["value"], one["bound"]),
                    "yes" if one["passed"] else "no",
                    one.get("reason", ""),
                )
                for one in verdicts
            ],
        )


def _changes_chart(
    domain: str, changes: Sequence[Mapping[str, Any]], verdicts: Sequence[Mapping[str, Any]]
) -> Iterator[Block]:
    """Draw the change of the domain and of each protected slice with its interval."""
    passed = {str(one["name"]).partition(" of ")[2]: bool(one["passed"]) for one in verdicts}
    rows = [
        (
            str(one["name"]).replace("_", " "),
            one["num_users"],
            *(float(one[name]) for name in ("difference", "low", "high")),
            "allowed" if passed.get(str(one["name"]), True) else "refused",
        )
        for one in changes
    ]
    if rows:
        harmed = [row[0] for row in rows if row[-1] == "refused"]
        title = f"{domain}: {rows[0][2]:+.4f} over the base"
        yield figure(
            interval_chart,
            f"changes-{domain}",
            f"{title}; the gate refuses {', '.join(harmed)}" if harmed else title,
            "Change of the metric on held-out users, over the domain's items alone, with paired "
            "97.5% intervals. The gate wants a gain of the domain and allows slices what chance "
            "explains.",
            [
                *texts("users"),
                *counts("count"),
                *numbers("change", "low", "high", format="signed"),
                *texts("gate"),
            ],
            rows,
            "label - mean low high series",
            colors={name: COLORS[name] for name in COLORS if name in {row[-1] for row in rows}},
            x_title="change of the metric",
            rule_at=0,
        )


def _read_registered(run: Run) -> tuple[list[tuple[Cell, ...]], list[str]]:
    """List the adapters of a run's bundles, each domain's newest first, and the problems."""
    folder = run.bundles_folder
    served_base = (folder / CURRENT).resolve().name.partition("+")[0]
    rows, problems = [], []
    for domain in names_in(folder / ADAPTERS):
        place = folder / ADAPTERS / domain
        current = (place / CURRENT).resolve()
        found = []
        for path in (place / name for name in names_in(place) if name.startswith("adapter-")):
            try:
                found.append(_registered(path, path.resolve() == current, served_base))
            except (UnreadableError, KeyError, TypeError, AttributeError, ValueError) as error:
                name = unquote(domain.removeprefix("domain-"))
                problems.append(f"adapter {path.name} of {name} cannot be read: {error}")
        rows += sorted(found, key=lambda row: str(row[-1]), reverse=True)
    return rows, problems


def _registered(path: Path, is_current: bool, served_base: str) -> tuple[Cell, ...]:
    made = read_table(path / ADAPTER_MANIFEST)
    if made is None:
        raise UnreadableError(f"{ADAPTER_MANIFEST} is missing")
    settings = read_table(path / CONFIG) or {}
    state = "registered"
    if is_current:
        of_base = bundle_directory(path, made["base_version"]).name == served_base
        state = "served" if of_base else "of another base: not served"
    metrics, verdicts = made.get("metrics", {}), made.get("verdicts", [])
    before, after = (
        next(iter(metrics.get(f"{name}_within_domain", {}).values()), None)
        for name in ("base", "adapter")
    )
    time = changed_at(path / ADAPTER_MANIFEST)
    return (
        *(str(made["domain"]), str(made["version"]), state),
        *(str(made["base"]).replace("_", "-"), str(made["base_version"])),
        *(settings.get("r"), made.get("num_parameters"), made.get("share")),
        None if before is None or after is None else after - before,
        f"{sum(bool(one['passed']) for one in verdicts)} of {len(verdicts)}",
        None if time is None else time.isoformat(),
    )


def _registered_table(rows: Sequence[Sequence[Cell]]) -> Table:
    return Table(
        key="registered",
        title="Adapters of the bundles",
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
    )
