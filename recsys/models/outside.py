"""Models of other packages, each found by the address of its row: ``my_package.module:SPEC``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, NamedTuple

from recsys.models.item_tower import ItemCatalogue
from recsys.models.names import ModelName, check_outside


class Over(NamedTuple):
    """Data that a model is loaded with."""

    catalogue: ItemCatalogue
    item_codes: Callable[[], Any] | None = None
    """Reads the semantic IDs (`recsys.semantic_ids.codes.ItemCodes`); None without any."""


def spec_at(name: str, address: str) -> Any:
    """Import the row of a model of another package (`recsys.fitting.spec.ModelSpec`)."""
    check_outside({name: address})
    module, _, attribute = address.partition(":")
    try:
        spec = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"the model {name!r} is {address}, which cannot be imported ({error}); install its "
            "package where this runs, or correct the address"
        ) from error
    names = getattr(spec, "names", None)
    if not isinstance(names, ModelName):
        raise ValueError(f"{address} is no ModelSpec but a {type(spec).__name__}; name the row")
    if names.name != name:
        raise ValueError(
            f"{address} is the model {names.name!r}, not {name!r}; use one name in both places"
        )
    if names != ModelName(**{one: getattr(names, one) for one in OUTSIDE_FIELDS}):
        raise ValueError(
            f"the names of {address} may set {', '.join(OUTSIDE_FIELDS)} alone: a model of another "
            "package has one name everywhere, is queried in each profile, and trains, if it does, "
            "in its own fit"
        )
    return spec


OUTSIDE_FIELDS = ("name", "label", "meaning", "reason", "explanation", "repeats")
