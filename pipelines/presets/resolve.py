"""From a TOML file, a preset's name and ``--set`` to the whole configuration of one run."""

from __future__ import annotations

import difflib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, reduce
from pathlib import Path
from typing import Any, cast

from features.reading.databases import is_address, moved
from pipelines.config.run import SHARED, TRAININGS, RunConfig, SharedTraining
from pipelines.config.toml import (
    Table,
    merge,
    nested,
    parse_assignment,
    read_toml,
    refuse_old_keys,
    set_value,
    upgraded,
    validate,
    without_keys,
)
from pipelines.datasets.fetch import fetch
from pipelines.datasets.registry import find_dataset
from pipelines.engine.artifacts import plain
from pipelines.engine.workspace import DailyState, check_writable
from pipelines.inputs.online_events import export_store, with_forgotten
from pipelines.partitions.manifest import PartitionsManifest
from pipelines.presets import PRESETS
from serving.online.opening import is_store

DEFAULT_PRESET = "auto"
CONFIG = "config.toml"
"""In a workspace: the settings of its last run."""
PLAN = "plan.json"
"""In a workspace: what an automatic run does, and why."""
FILES = ("events", "partitions", "online_events", "items", "users", "forgotten")
FILE_KEYS = tuple(f"data.{name}" for name in FILES)
MODEL_KEYS = ("content.encoder", "enrichment.model")
"""Keys that may be paths of models."""


def preset_named(name: object, source: str) -> RunConfig:
    """Build a preset's configuration."""
    if isinstance(name, str) and name in PRESETS:
        return PRESETS[name]()
    near = difflib.get_close_matches(str(name).replace("-", "_"), PRESETS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"{source}: no preset {name!r}; {hint}Presets: {', '.join(PRESETS)}")


def relative_to(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Read a TOML file's relative paths as relative to that file."""
    for key in (*FILE_KEYS, *MODEL_KEYS):
        value = set_value(table, key)
        if key in FILE_KEYS and value is not None:
            table = merge(table, nested(key, moved_to(folder, value)))
        # Without a slash it is a model's name, or a mistake that its check explains.
        elif isinstance(value, str) and "/" in value:
            # A bundle remembers it.
            path = str((folder / Path(value).expanduser()).absolute())
            table = merge(table, nested(key, path))
    return table


def moved_to(folder: Path, value: object) -> object:
    """Read a path, or each of a list, as relative to a folder."""
    if isinstance(value, list):
        return [moved_to(folder, one) for one in value]
    if not isinstance(value, str):
        return value
    if is_address(value):
        return moved(value, lambda place: str(folder / place))
    return value if is_store(value) else str(folder / value)


@dataclass(frozen=True, kw_only=True)
class ConfigSources:
    """Sources of the configuration of one run; later ones win."""

    path: Path | None = None
    """A TOML file: ``preset = "..."`` and overrides."""
    preset: str | None = None
    """Wins over the file's."""
    assignments: Sequence[str] = ()
    """Assignments of ``--set``."""
    values: Table = field(default_factory=dict)
    """Values of other options of the command."""
    workspace: Path | None = None

    @property
    def name(self) -> str:
        return str(self.path) if self.path else f"preset {self.preset or DEFAULT_PRESET}"

    @cached_property
    def file(self) -> Table:
        """The values of the file; those of a workspace may be of an earlier version."""
        if self.path is None:
            return {}
        table = read_toml(self.path)
        table = upgraded(table) if self.path.name == CONFIG else table
        # The workspace keeps the paths, in another folder.
        return relative_to(table, self.path.parent.absolute())

    @cached_property
    def below(self) -> Table:
        """The preset's values."""
        name = self.preset or self.file.get("preset", DEFAULT_PRESET)
        return cast(Table, plain(preset_named(name, self.name)))

    @cached_property
    def own(self) -> Table:
        """The values of the file and, over them, of the command; over any preset."""
        place = {"workspace": str(self.workspace)} if self.workspace else {}
        parts = [self.file, *map(parse_assignment, self.assignments), self.values, place]
        for part in parts:
            refuse_old_keys(part, self.name)
        spread = (with_shared(part, self.name) for part in parts)
        return without_keys(reduce(merge, spread), ["preset"])

    def config(self, choices: Table | None = None, deferred: Sequence[str] = ()) -> RunConfig:
        """Build the configuration.

        Args:
            choices: Values over the preset's and below the user's.
            deferred: Keys of which the user's values do not count.
        """
        values = merge(merge(self.below, choices or {}), without_keys(self.own, deferred))
        return validate(RunConfig, values, " --set ".join([self.name, *self.assignments]))

    def latest(self) -> RunConfig:
        """Build the configuration; an automatic one has the choices of its latest plan."""
        values = merge(self.below, self.own)
        is_automatic = set_value(values, "auto.enabled") is True
        choices = saved_choices(Path(str(values["workspace"]))) if is_automatic else None
        return self.config(*choices or ())


def resolve(
    path: Path | None = None,
    *,
    preset: str | None = None,
    assignments: Sequence[str] = (),
    workspace: Path | None = None,
) -> RunConfig:
    """Build the configuration of one run; see ``ConfigSources``."""
    return ConfigSources(
        path=path, preset=preset, assignments=assignments, workspace=workspace
    ).latest()


def saved_choices(workspace: Path) -> tuple[Table, Sequence[str]] | None:
    """Read what the plan of a workspace chose for its latest round, and what that round defers.

    None without a plan.
    """
    path = workspace / PLAN
    if not path.exists():
        return None
    plan: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    # Plans of earlier versions defer nothing.
    return upgraded(plan["choices"]), plan.get("deferred", ())


def with_shared(table: Table, source: str) -> Table:
    """Copy the keys of ``[shared_training]`` to every training whose section does not set them."""
    if SHARED not in table:
        return table
    validate(SharedTraining, {SHARED: table[SHARED]}, source)
    each = {name: merge(table[SHARED], table.get(name, {})) for name in TRAININGS}
    return without_keys(table | each, [SHARED])


def check_places(config: RunConfig) -> None:
    """Find out at the start whether the folders of a run can be written."""
    check_writable(
        config.workspace, "the workspace", "--set workspace=FOLDER (in the TOML file: workspace)"
    )
    if config.release.bundles is not None:
        check_writable(config.release.bundles, "the folder of bundles", "release.bundles")


def with_dataset(config: RunConfig) -> RunConfig:
    """Fetch the data set that the configuration names, and point its files at the tables."""
    if config.data.partitions is not None:
        return with_partitions(config)
    data = config.data
    if data.dataset is not None and data.events is not None:
        raise ValueError(
            f"both data.dataset = {data.dataset!r} and data.events = "
            f"{str(data.events)!r} are set; keep one of them"
        )
    if data.dataset is None and data.events:
        return config
    if data.dataset is None:
        raise ValueError(
            'no data: set data.events = "my-events.csv" (or .parquet) in the [data] table, '
            'data.partitions = "events/" for a folder of days, or data.dataset = '
            '"movielens-100k" (see recsys data list)'
        )
    table = fetch(find_dataset(data.dataset)).table
    data = replace(data, events=table("events"), items=table("items"), users=table("users"))
    return replace(config, data=data)


def with_partitions(config: RunConfig) -> RunConfig:
    """Point the events at the clean files of the partitions that were ingested."""
    data, own = config.data, DailyState(config.workspace).partitions
    others = [path for path in data.event_paths() if own not in path.parents]
    if others or data.dataset is not None:
        raise ValueError(
            f"both data.partitions = {data.partitions!r} and "
            f"{'data.events' if others else 'data.dataset'} are set; keep one of them (a dump of "
            "what came before may lie among the partitions, named by its last day)"
        )
    manifest = PartitionsManifest.read(config.workspace)
    files = [] if manifest is None else manifest.files(config.workspace)
    if not files:
        raise ValueError(f"no partition with events in {own}: run recsys ingest, which says why")
    return replace(config, data=replace(data, events=tuple(files), columns={}))


def with_online_events(config: RunConfig) -> RunConfig:
    """Export the events of the online store that the configuration names, once a run."""
    config = with_forgotten(config)
    url = config.data.online_events
    if url is None or not is_store(url):
        return config
    folder = DailyState(config.workspace).online_events
    export_store(url, folder)
    return replace(config, data=replace(config.data, online_events=str(folder)))
