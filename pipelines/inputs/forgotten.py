"""Users that a server has forgotten: added to the list of a run before anything is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from features.forget_list import ForgetList
from pipelines.config.run import RunConfig
from pipelines.engine.forgotten import add_to_list, list_path
from pipelines.inputs.exported import Exported
from pipelines.inputs.opened_store import opened
from serving.online.opening import is_store


def with_forgotten(config: RunConfig) -> RunConfig:
    """Add to the list whom the online store, or the export that is read, has forgotten.

    Returns:
        The configuration with the list's place, which a run's other workspaces read too.
    """
    path, place = list_path(config).absolute(), config.data.online_events
    if place is not None:
        add_to_list(path, _forgotten_in(place))
    return replace(config, data=replace(config.data, forgotten=path))


def _forgotten_in(place: str) -> ForgetList:
    if not is_store(place):
        return Exported.read(Path(place)).forgotten
    with opened(place) as store:
        return store.forgotten()
