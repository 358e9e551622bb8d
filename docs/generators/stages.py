"""The facts of each stage, from the list that runs are made from."""

from __future__ import annotations

from dataclasses import is_dataclass
from pathlib import Path

from docs.generators.text import escaped, table
from pipelines.config.run import RunConfig
from pipelines.stages.list import STAGES

CONFIG = RunConfig(workspace=Path())

HEAD = """# The stages of a run

`recsys run` works through these stages. Each writes its folder whole or not at all; one whose
inputs, settings and code are unchanged is skipped; a killed run goes on where it was. An arrow says
what a stage waits for.

![The stages of a run](../pictures/stages.svg)

"""


def page_of(name: str) -> str:
    return f"{name.replace('_', '-')}.md"


def stages_page() -> str:
    """List the stages, each with a link to its page."""
    rows = [
        (f"[`{stage.name}`]({page_of(stage.name)})", escaped(stage.description)) for stage in STAGES
    ]
    return HEAD + table(("stage", "what"), rows)


def stage_facts(name: str) -> str:
    """Write what a stage does, reads and writes, and which tables of the TOML file shape it."""
    (stage,) = [one for one in STAGES if one.name == name]
    reads = ", ".join(f"[`{one}`]({page_of(one)})" for one in stage.reads) or "raw files"
    followed = [one.name for one in STAGES if name in one.reads]
    tables = []
    for section in stage.sections:
        first = section.partition(".")[0]
        anchor = first if is_dataclass(getattr(CONFIG, first)) else "keys-of-the-file-itself"
        tables.append(f"[`{section}`](../reference/configuration.md#{anchor})")
    rows = [("reads", reads), ("writes", escaped(stage.writes))]
    if followed:
        rows.append(("read by", ", ".join(f"[`{one}`]({page_of(one)})" for one in followed)))
    return table(
        (f"`{name}`", escaped(stage.description)), [*rows, ("shaped by", ", ".join(tables))]
    )
