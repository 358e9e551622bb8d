"""Settings that trials vary and their values, as ``--over`` has them.

sequence_training.schedule.learning_rate=1e-4..1e-2   a range; log-uniform from a factor of 10
sequence.num_blocks=1..4                              whole numbers
sequence.embedding_dim=32,64,128                      some values
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import reduce
from importlib.util import find_spec
from typing import Any

from pipelines.config.toml import Table, merge, nested
from recsys.models.names import MODELS

LOG_FROM = 10.0
"""Ratio of a range's ends from which values are drawn log-uniformly."""
BLEND = "blend_fast"
ROW_OF = {
    **{
        section: one.name
        for one in MODELS
        if one.profile == "fast" and not one.repeats
        for section in one.sections
    },
    "blend": BLEND,
}
"""Row of the metrics that a section of the configuration shapes."""
FORM = "write section.key=low..high for a range, or section.key=a,b,c for some values"


Space = Mapping[str, Any]
"""Optuna's distribution of each key's values."""


def load_optuna() -> Any:
    """Import Optuna, which is an optional extra."""
    if find_spec("optuna") is None:
        raise ValueError("recsys tune needs Optuna, which is not installed: pip install optuna")
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def parse_setting(text: str) -> tuple[str, Any]:
    """Read one ``--over``: the key and its distribution."""
    kinds = load_optuna().distributions
    key, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not key or not values:
        raise ValueError(f"--over {text!r}: {FORM}")
    section = key.split(".")[0]
    if section not in ROW_OF or "." not in key:
        raise ValueError(
            f"--over {text!r}: trials vary keys of {', '.join(ROW_OF)}; what prepares the data is "
            "the same for all of them"
        )
    low, dots, high = values.partition("..")
    if not dots:
        choices = tuple(dict.fromkeys(_value(part, text) for part in values.split(",")))
        if len(choices) < 2:
            raise ValueError(f"--over {text!r}: one value leaves nothing to choose; {FORM}")
        return key, kinds.CategoricalDistribution(choices)
    ends = [_value(part, text) for part in (low, high)]
    if not all(type(end) in (int, float) for end in ends) or not ends[0] < ends[1]:
        raise ValueError(f"--over {text!r}: a range needs two numbers, the smaller first")
    whole = all(type(end) is int for end in ends)
    kind = kinds.IntDistribution if whole else kinds.FloatDistribution
    return key, kind(*ends, log=ends[0] > 0 and ends[1] >= LOG_FROM * ends[0])


def _value(text: str, whole: str) -> Any:
    """Read a value as TOML; any other text is a string."""
    if not text.strip():
        raise ValueError(f"--over {whole!r}: a value is missing; {FORM}")
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def parse_space(texts: Sequence[str]) -> Space:
    """Read every ``--over``."""
    space = [parse_setting(text) for text in texts]
    if not space:
        raise ValueError(f"name at least one setting to vary: --over ...; {FORM}")
    keys = [key for key, _ in space]
    if twice := sorted({key for key in keys if keys.count(key) > 1}):
        raise ValueError(f"--over names {', '.join(twice)} more than once")
    return dict(space)


def find_row(space: Space) -> str:
    """Return the row that the settings shape: one model, or the blend if they shape several."""
    rows = {ROW_OF[key.split(".")[0]] for key in space}
    return rows.pop() if len(rows) == 1 else BLEND


def assignments(values: Mapping[str, Any]) -> list[str]:
    """Write a trial's values as ``--set`` takes them."""
    return [f"{key}={_toml(value)}" for key, value in values.items()]


def as_table(values: Mapping[str, Any]) -> Table:
    """Write a trial's values as the nested tables of a configuration."""
    return reduce(merge, (nested(key, value) for key, value in values.items()), Table())


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else repr(value)
