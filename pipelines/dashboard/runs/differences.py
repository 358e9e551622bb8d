"""Two runs, and the settings in which they differ."""

from __future__ import annotations

from pipelines.config.removed import REMOVED_KEYS
from pipelines.dashboard.data.answers import SERVED, Side
from pipelines.dashboard.runs.runs import tags_text, time_text
from pipelines.dashboard.workspaces.run import Run
from pipelines.pages.charts import texts
from pipelines.pages.document import Block, Section, Table, Words
from pipelines.pages.wording import model_label

PLACES = (
    "workspace",
    "tracking.",
    "release.bundles",
    *(f"data.{name}" for name in ("dataset", "events", "items", "users", "partitions", "online_")),
)
"""Beginnings of the settings that name a place; the data themselves are compared by digests."""


def about(letter: str, side: Side) -> str:
    """Describe a side."""
    run, model = side.run, None if side.model == SERVED else model_label(side.model)
    facts = [f"{letter} is {run.kind} {run.name}", time_text(run), model, tags_text(run)]
    return f"{', '.join(filter(None, facts))}."


def changed_settings(first: Run, second: Run) -> list[list[str]] | None:
    """List the settings that differ, but for places; None if those of one are not on record.

    A bundle has those of its models' stages: with a run, the bundle's settings are compared.
    """
    configs = (first.config, second.config)
    if not all(configs):
        return None
    sections = [{name.partition(".")[0] for name in config} for config in configs]
    names = {*first.config, *second.config}
    if first.kind != second.kind:
        names = {*(first if first.kind == "bundle" else second).config}
    return [
        [name, *(config.get(name, "(not set)") for config in configs)]
        for name in sorted(names - REMOVED_KEYS.keys())
        if name.partition(".")[0] in sections[0] & sections[1]
        and first.config.get(name) != second.config.get(name)
        and not name.startswith(PLACES)
    ]


def settings_section(first: Run, second: Run) -> Section:
    """List the settings that differ, and whether the data do."""
    found = changed_settings(first, second)
    data = (first.data_digest, second.data_digest)
    state = "are the same" if data[0] == data[1] else "differ"
    lines = [f"The data {state if all(data) else 'are not on record for both'}."]
    if not found:
        none = "No setting that shapes results differs."
        lines.append("Settings are not on record for both." if found is None else none)
    table = Table(
        key="settings",
        title="Settings that differ",
        note="By the dotted names of the TOML file; places are left out.",
        columns=texts("Setting", "A", "B"),
        rows=found or (),
        origins=[first.origin, second.origin],
    )
    blocks: list[Block] = [Words(lines=lines), *([table] if found else [])]
    return Section(key="differences", title="What differs", blocks=blocks)
