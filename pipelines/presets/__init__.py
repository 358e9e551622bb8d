"""Whole configurations by name, each a TOML file of this folder."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from pipelines.config.run import RunConfig
from pipelines.config.toml import Table, merge, read_toml, validate, without_keys
from pipelines.engine.artifacts import plain

FOLDER = Path(__file__).parent


def preset_table(name: str) -> Table:
    """Read the keys that a preset and those below it set."""
    table = read_toml(FOLDER / f"{name}.toml")
    below = preset_table(table["preset"]) if "preset" in table else {}
    return merge(below, without_keys(table, ["preset"]))


def load_preset(name: str) -> RunConfig:
    """Build a preset's configuration; other keys have their defaults."""
    table = preset_table(name)
    defaults = plain(RunConfig(workspace=Path(table["workspace"])))
    return validate(RunConfig, merge(defaults, table), f"preset {name}")


OWN_FILES = ("movielens_100k", "movielens_1m", "amazon_beauty", "amazon_sports", "amazon_toys")
PRESETS: dict[str, Callable[[], RunConfig]] = {
    "auto": partial(load_preset, "auto"),
    "shop": partial(load_preset, "auto"),
    **{name: partial(load_preset, name) for name in OWN_FILES},
}
