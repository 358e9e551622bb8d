"""What one stage is, and what it is handed. The list of them is pipelines/stages/list.py."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, reduce
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pipelines.config.run import RunConfig
from pipelines.config.toml import plain
from pipelines.engine.artifacts import files_under
from pipelines.engine.outbox import RunLog, SilentRun
from pipelines.engine.workspace import Workspace

SOURCE_ROOT = Path(__file__).resolve().parents[2]
CODE_SUFFIXES = (".py", ".jinja", ".css", ".js")


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
    """Where to keep states to resume from; outlives a killed run, not a finished one."""
    making: str
    """Digest of everything the artefact is made from."""
    show_progress: bool = False
    run: RunLog = field(default_factory=SilentRun)
    """Where numbers are tracked that are worth seeing before the stage is done."""


@dataclass(frozen=True, kw_only=True)
class StageRows:
    """What a stage counted; goes into the manifest and the log line."""

    rows_in: int
    rows_out: int
    more: Mapping[str, int] = field(default_factory=dict)

    def counts(self) -> dict[str, int]:
        return {"in": self.rows_in, "out": self.rows_out, **self.more}


def no_raw_files(_config: RunConfig) -> Mapping[str, Path]:
    """Stand in for the raw files of a stage that reads artefacts only."""
    return {}


def always(_context: StageContext) -> bool:
    """Stand in for the outside check of a stage that writes nothing outside its artefact."""
    return True


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One step from raw events to a released bundle."""

    name: str
    description: str
    reads: tuple[str, ...]
    """Stages whose artefacts it reads."""
    reads_if: Mapping[str, Callable[[RunConfig], bool]] = field(default_factory=dict)
    """Those of them that it reads for some configurations only."""
    writes: str
    """What its artefact holds, in words."""
    sections: tuple[str, ...]
    """Sections or dotted keys of RunConfig that shape the artefact; a change makes it again."""
    code: tuple[str, ...]
    """Files and folders whose change makes it again, from the source root."""
    libraries: tuple[str, ...]
    """Distributions whose version shapes the artefact."""
    function: Callable[[StageContext], StageRows]
    raw_files: Callable[[RunConfig], Mapping[str, Path]] = no_raw_files
    outputs_exist: Callable[[StageContext], bool] = always
    """Whether what the stage wrote outside its artefact is there yet."""

    def inputs_of(self, config: RunConfig) -> list[str]:
        """Name the stages whose artefacts shape this one's."""
        return [
            name for name in self.reads if name not in self.reads_if or self.reads_if[name](config)
        ]

    def config_of(self, config: RunConfig) -> dict[str, Any]:
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
        libraries = {name: installed_version(name) for name in self.libraries}
        return {
            "code": digest_of_code((*self.code, f"pipelines/stages/{self.name}.py")),
            **libraries,
        }


def installed_version(distribution: str) -> str:
    """Return a distribution's version, "absent" where another one stands in for it."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"


@cache
def digest_of_code(places: tuple[str, ...]) -> str:
    """Hash the source of some files and folders (sha256, hex)."""
    digest = hashlib.sha256()
    for place in places:
        path = SOURCE_ROOT / place
        for file in [path] if path.is_file() else files_under(path):
            if file.suffix in CODE_SUFFIXES:
                digest.update(str(file.relative_to(SOURCE_ROOT)).encode() + b"\0")
                digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()
