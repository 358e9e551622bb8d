"""Names and texts of each retrieval model. Imports no model.

`recsys.fitting.catalogue` has the models themselves. What only needs names (settings, stages, the
manifest of a bundle, surfaces, reports, pages) reads this tuple, so that it loads no model for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any, Literal


@dataclass(frozen=True, kw_only=True)
class ModelName:
    """The names and words of one retrieval model."""

    name: str
    """Folder of its artefacts and in a bundle, its row of metrics, and its source in blends,
    surfaces and replies."""
    section: str = ""
    """Section of its settings; its name by default."""
    training: str = ""
    """Section of its training; empty if it is fitted without one."""
    profile: Literal["fast", "full"] = "fast"
    """The first profile that queries it."""
    variant_of: str = ""
    """The model whose training makes it; empty for a model of its own."""
    is_weights: bool = False
    """True for a table of weights between items (`recsys.models.item_weights`)."""
    reads_types: bool = False
    """True if it reads types of events, and so negative ones; others read the rest alone."""
    repeats: bool = False
    """True if it is for lists that may hold the history."""
    label: str = ""
    """Title in reports and pages; its name by default, and the other texts are made of it."""
    meaning: str = ""
    """How it ranks, in a line of a report."""
    reason: str = ""
    """Why an item is in a list, in two or three words: ``reasons`` of a reply."""
    explanation: str = ""
    """Why an item is in a list: the predicate of a sentence of an explanation."""

    def __post_init__(self) -> None:
        label = self.label or self.name.replace("_", " ")
        texts = {"section": self.name, "label": label, "meaning": label, "reason": f"by {label}"}
        for field, text in (texts | {"explanation": f"is chosen by {label}"}).items():
            object.__setattr__(self, field, getattr(self, field) or text)

    @property
    def stage(self) -> str:
        return f"train_{self.variant_of or self.name}" if self.training else "fit_baselines"

    @property
    def sections(self) -> tuple[str, ...]:
        return (self.section, self.training) if self.training else (self.section,)


POPULARITY = ModelName(
    name="popularity",
    meaning="most popular items, recent events weighted higher; the same list for everyone",
    reason="popular",
    explanation="is popular",
)
ITEM_TO_ITEM = ModelName(
    name="item_to_item",
    is_weights=True,
    label="item-to-item",
    meaning="items that co-occur with the user's history",
    reason="goes with the history",
    explanation="goes with items of the history",
)
EASE = ModelName(
    name="ease",
    is_weights=True,
    label="EASE",
    meaning="linear weights from each item of the history, in closed form",
    reason="goes with the history",
    explanation="goes with items of the history by linear weights",
)
REPEATS = ModelName(
    name="repeats",
    is_weights=True,
    repeats=True,
    meaning="what the user took before, by how often and how lately",
    reason="was taken before",
    explanation="was taken before",
)
NEXT_BASKET = ModelName(
    name="next_basket",
    is_weights=True,
    repeats=True,
    meaning="what follows the items of the user's baskets",
    reason="follows the history",
    explanation="follows the baskets of the history",
)
CONTENT = ModelName(
    name="content_similarity",
    meaning="items whose text is similar to the user's latest items",
    reason="is about the same as the history",
    explanation="is about the same as items of the history",
)
TWO_TOWER = ModelName(
    name="two_tower",
    training="two_tower_training",
    reads_types=True,
    label="two-tower",
    meaning="a query tower for the history and an item tower, scored by dot product",
    reason="fits the history",
    explanation="fits the history as a whole",
)
SEQUENCE = ModelName(
    name="sequence",
    training="sequence_training",
    reads_types=True,
    label="sequence model",
    meaning="a sequence model of the user's history",
    reason="comes next after the history",
    explanation="comes next after the history",
)
ENSEMBLE = replace(
    SEQUENCE,
    name="ensemble",
    variant_of=SEQUENCE.name,
    profile="full",
    label="sequence ensemble",
    meaning="an ensemble of sequence models, scores averaged",
)
GENERATIVE = ModelName(
    name="generative",
    training="generative_training",
    profile="full",
    label="generative model",
    meaning="generates the semantic ID of the next item by beam search",
    reason="was generated from the history",
    explanation="was generated from the history",
)
MODELS = (
    POPULARITY,
    ITEM_TO_ITEM,
    EASE,
    REPEATS,
    NEXT_BASKET,
    CONTENT,
    TWO_TOWER,
    SEQUENCE,
    ENSEMBLE,
    GENERATIVE,
)
"""In the order of their rows in a table. If a sequence model has ``fast_members``, these are
``sequence`` and all of its members are ``ensemble``."""
BY_NAME = {one.name: one for one in MODELS}
COUNTED = tuple(one for one in MODELS if not one.training)
"""Models without a training: they count, compare or solve."""
ITEM_WEIGHTS = tuple(one.name for one in MODELS if one.is_weights)
SLOW_MODELS = tuple(one.name for one in MODELS if one.profile == "full")
"""Models that profile ``fast`` leaves out."""


ADDRESS = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*:[A-Za-z_]\w*"
NAME = r"[a-z][a-z0-9_]{0,39}"
TAKEN = ("search", "rules", "blend", "blend_fast", "blend_full", "ranked", "ranker")
"""Names of sources, of rows and of a bundle's parts that are no model's."""


def check_outside(addresses: Mapping[str, str]) -> None:
    """Check names and addresses without importing anything."""
    for name, address in addresses.items():
        if name in BY_NAME or name in TAKEN:
            raise ValueError(
                f"models.{name}: the name {name!r} is taken by the platform itself; give the model "
                "another one, here and in its spec"
            )
        if not re.fullmatch(NAME, name):
            raise ValueError(
                f"models.{name}: a model's name is lower-case letters, digits and underscores, at "
                "most 40, and begins with a letter"
            )
        if not re.fullmatch(ADDRESS, address):
            raise ValueError(
                f"models.{name}.spec is {address!r}; write the module and the name of the row in "
                'it, as "my_package.module:SPEC"'
            )


OUTSIDE_FIELDS = ("name", "label", "meaning", "reason", "explanation", "repeats")
"""What a model of another package may say of its names."""


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
