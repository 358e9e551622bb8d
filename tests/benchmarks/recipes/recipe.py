"""What is trained and measured, as one document that travels with the arrays.

The document is written by whoever resolved a configuration and read where the training runs, so
nothing is left to defaults that may differ between two versions of the package.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeVar

from recsys.fitting.queries import RetrievalSettings
from recsys.models.configs import (
    ContentSimilarityConfig,
    EaseWeightsConfig,
    ItemToItemConfig,
    PopularityConfig,
    TwoTowerConfig,
)
from recsys.models.generative.config import GenerativeConfig, TeachingConfig
from recsys.models.names import BY_NAME, ENSEMBLE, MODELS, SEQUENCE, SLOW_MODELS
from recsys.models.sequence.config import SequenceConfig
from recsys.replay import experiment
from recsys.retrieval.blend.config import BlendConfig
from recsys.training.passes import TrainingConfig

Config = TypeVar("Config")

FITTED = tuple(one.name for one in MODELS if not one.repeats)
"""Models of the literature's protocol, whose lists leave out the history."""
ROWS = (*FITTED, "blend_fast", "blend")
"""Names of what is measured; ``blend_fast`` merges all but the lists of ``SLOW_MODELS``. Without
``fast_members`` of a sequence model there is no row ``ensemble``."""
REFITTED = ("sequence_refit", "blend_refit")
"""Rows of what is served: models fitted again with the validation events, for as many passes as
validation chose, and merged by the weights that the models before them were given. Measured on test
alone, and only where a recipe names them; the other rows never saw those events. ``blend_refit``
merges what ``blend_fast`` does."""
BLENDS = ("blend_fast", "blend")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of every model, of the blend and of what is measured."""

    rows: tuple[str, ...] = ROWS
    """What is shown."""
    sources: tuple[str, ...] = FITTED
    """What a blend merges, shown or not."""
    popularity: PopularityConfig = field(default_factory=PopularityConfig)
    item_to_item: ItemToItemConfig = field(default_factory=ItemToItemConfig)
    ease: EaseWeightsConfig = field(default_factory=EaseWeightsConfig)
    content_similarity: ContentSimilarityConfig = field(default_factory=ContentSimilarityConfig)
    two_tower: TwoTowerConfig = field(default_factory=TwoTowerConfig)
    two_tower_training: TrainingConfig = field(default_factory=TrainingConfig)
    sequence: SequenceConfig = field(default_factory=SequenceConfig)
    sequence_training: TrainingConfig = field(default_factory=TrainingConfig)
    generative: GenerativeConfig = field(default_factory=GenerativeConfig)
    generative_training: TrainingConfig = field(default_factory=TrainingConfig)
    generative_ids: Literal["content", "sequence"] = "content"
    """What the generated semantic IDs are made from: content, as prepared, or the item vectors of
    the recipe's sequence model, which group what users interact with together. Cold items have
    content's."""
    generative_teaching: TeachingConfig = field(default_factory=TeachingConfig)
    """What the generative model learns from the recipe's sequence model besides the labels."""
    blend: BlendConfig = field(default_factory=BlendConfig)
    fusion_weights: Mapping[str, float] = field(default_factory=dict)
    """By source, what merges lists where no weights are learned; 1 for sources that it lacks."""
    metric: str = "ndcg@10"
    """What the weights of a blend are judged by."""
    retrieval: RetrievalSettings = field(default_factory=RetrievalSettings)

    def __post_init__(self) -> None:
        if self.generative_ids not in ("content", "sequence"):
            raise ValueError(
                f"generative_ids is 'content' or 'sequence', got {self.generative_ids!r}"
            )
        for name, allowed in (("rows", (*ROWS, *REFITTED)), ("sources", FITTED)):
            named = getattr(self, name)
            if not named or set(named) - set(allowed):
                raise ValueError(f"{name} must be some of {', '.join(allowed)}, got {list(named)}")

    def replayed(self, models: Sequence[str]) -> experiment.Recipe:
        """Keep what a replay of some models reads."""
        trainings = {name: getattr(self, f"{name}_training", None) for name in models}
        return experiment.Recipe(
            models={name: getattr(self, name) for name in models},
            trainings={name: one for name, one in trainings.items() if one is not None},
            blend=self.blend,
            fusion_weights=self.fusion_weights,
            metric=self.metric,
            retrieval=self.retrieval,
        )

    def digest(self) -> str:
        """Name these settings by 12 digits; other settings have another name."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def models(self) -> list[str]:
        """Name what has to be fitted for the rows, in the order of ``ROWS``."""
        merging = (*BLENDS, "blend_refit")
        parts = {part for row in self.rows if row in merging for part in self.parts(row)}
        if "sequence_refit" in self.rows:
            parts.add(SEQUENCE.name)
        wanted = [model for model in BY_NAME if model in parts or model in self.rows]
        return [model for model in wanted if model != ENSEMBLE.name or self.has_ensemble]

    @property
    def has_ensemble(self) -> bool:
        """Whether profile full queries more members of the sequence model than profile fast."""
        return self.sequence.fast_members is not None

    def refitted(self) -> list[str]:
        """Name the models that are fitted again for the rows ``REFITTED``, in their order."""
        parts = self.parts("blend_refit") if "blend_refit" in self.rows else []
        alone = [SEQUENCE.name] if "sequence_refit" in self.rows else []
        return [model for model in BY_NAME if model in (*parts, *alone)]

    def parts(self, blend: str) -> list[str]:
        """Name the models that a blend merges."""
        out = SLOW_MODELS if blend != "blend" else ()
        named = [model for model in self.sources if model not in out]
        return [model for model in named if model != ENSEMBLE.name or self.has_ensemble]


def with_changes(recipe: Recipe, changes: Sequence[str]) -> Recipe:
    """Lay ``a.b=JSON`` changes over a recipe.

    Raises:
        ValueError: A key that the recipe does not have.
    """
    document = asdict(recipe)
    for change in changes:
        key, _, text = change.partition("=")
        *path, last = key.split(".")
        place: Any = document
        for part in path:
            place = place.get(part) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            raise ValueError(f"--set {change!r}: the recipe has no {key}")
        place[last] = json.loads(text)
    return config_of(Recipe, document)


def config_of(kind: type[Config], document: Mapping[str, Any], place: str = "") -> Config:
    """Build a dataclass, and those inside it, from what ``asdict`` and JSON made of it.

    Raises:
        ValueError: A key that the dataclass does not have, named with its place.
    """
    hints = typing.get_type_hints(kind)
    values = {}
    for name, value in document.items():
        if name not in hints:
            raise ValueError(
                f"{place}{name} is no setting of {kind.__name__} in this version of the package; "
                f"it has {', '.join(sorted(hints))}. Prepare the arrays again with this version"
            )
        values[name] = _value_of(hints[name], value, f"{place}{name}.")
    return kind(**values)


def _value_of(hint: Any, value: Any, place: str) -> Any:
    """Turn lists into tuples and tables into dataclasses, where a field's type says so."""
    options = [hint]
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = list(typing.get_args(hint))
    for option in options:
        if dataclasses.is_dataclass(option) and isinstance(option, type):
            if isinstance(value, Mapping):
                return config_of(option, value, place)
        elif typing.get_origin(option) is tuple and isinstance(value, list | tuple):
            return tuple(value)
    return value
