"""A stage, its context and its log. The list of stages is pipelines/stages/list.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import RunLog, plain
from pipelines.engine.code import INSTALLED
from pipelines.engine.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class StageContext:
    """All that a stage may use."""

    config: RunConfig
    workspace: Workspace
    inputs: Mapping[str, Path]
    """Directory of each artefact the stage reads."""
    output: Path
    """Empty directory to write into; it becomes the artefact when the stage returns."""
    checkpoints: Path
    """Folder of states to resume from; outlives a killed run, not a finished one."""
    making: str
    """Digest of everything the artefact is made from."""
    forced: bool = False
    """True if the user wants the artefact made again, whatever it is made from."""
    show_progress: bool = False
    run: RunLog = field(default_factory=RunLog)
    """Log of metrics that are worth seeing before the stage is done."""


@dataclass(frozen=True, kw_only=True)
class StageRows:
    """Rows of a stage, for the manifest and the log line."""

    rows_in: int
    rows_out: int
    more: Mapping[str, int] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        return {"in": self.rows_in, "out": self.rows_out, **self.more}


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step from raw events to a released bundle."""

    name: str
    function: Callable[[StageContext], StageRows]
    """The source that the artefact depends on is all that its module imports."""
    description: str
    reads: tuple[str, ...]
    """Stages whose artefacts it reads."""
    reads_if: Mapping[str, Callable[[RunConfig], bool]] = field(default_factory=dict)
    """Those of them that it reads for some configurations only."""
    writes: str
    """Contents of its artefact, in words."""
    sections: tuple[str, ...]
    """Sections or dotted keys of RunConfig that shape the artefact; a change makes it again."""
    on_ranks: Callable[[RunConfig], bool] = lambda config: False
    """True if it trains, so that an engine of several processes runs it on all of them."""
    raw_files: Callable[[RunConfig], Mapping[str, Path]] = lambda config: {}
    """Raw files that it reads, next to artefacts."""
    outputs_exist: Callable[[StageContext], bool] = lambda context: True
    """True if the stage's outputs outside its artefact still exist."""

    def input_stages(self, config: RunConfig) -> list[str]:
        """List the stages whose artefacts shape this one's."""
        return [
            name for name in self.reads if name not in self.reads_if or self.reads_if[name](config)
        ]

    def config_tables(self, config: RunConfig) -> dict[str, Any]:
        """Return the stage's sections as tables; raw files count by content, not by path."""
        sections: dict[str, Any] = {
            name: plain(reduce(getattr, name.split("."), config)) for name in self.sections
        }
        for where in config.raw_file_keys():
            section, _, key = where.partition(".")
            if isinstance(sections.get(section), dict):
                sections[section].pop(key, None)
        return sections

    def versions(self) -> dict[str, str]:
        """Return the digest of the stage's code and the versions of its libraries."""
        module = self.function.__module__
        libraries = {name: installed_version(name) for name in INSTALLED.libraries(module)}
        return {"code": INSTALLED.digest(module), **libraries}


def installed_version(distribution: str) -> str:
    """Return a distribution's version, "absent" if another one replaces it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"
