"""What the model of each row reads of users and items, in a few words.

Rows are only comparable with others that read the same.
"""

from __future__ import annotations

from pathlib import Path

from pipelines.config.run import RunConfig
from tests.benchmarks.reproduction.card import Card

IDS, TEXT, DATES = "ids", "text", "dates of past events"


def reads(row: str, card: Card) -> str:
    """Name the inputs of a row; a blend's are those of all models that it merges."""
    config = card.config(Path())
    models = card.sources() if row.startswith("blend") else (row.removesuffix("_refit"),)
    found = {one for model in models for one in inputs_of(model, config, dates=card.dates)}
    return ", ".join(one for one in (IDS, TEXT, DATES) if one in found)


def inputs_of(model: str, config: RunConfig, *, dates: bool) -> set[str]:
    """Name what a model reads; the generative one, also what its teacher does."""
    text = {TEXT} if config.content.encoder != "none" else set()
    of_sequence = config.sequence.calendar_days > 0 or config.sequence.time_buckets > 0
    read_dates = {
        "popularity": config.popularity.half_life_days is not None,
        "sequence": of_sequence,
        "ensemble": of_sequence,
        "generative": of_sequence and config.generative_training.teaching.share > 0,
    }
    found = {DATES} if dates and read_dates.get(model, False) else set()
    if model == "content_similarity":
        return found | {TEXT}
    return found | {IDS} | (text if model not in ("popularity", "item_to_item") else set())
