"""Agreement of several answers of a language model to one text (self-consistency).

Wang et al. 2022, arXiv:2203.11171. A value that a model guesses differs from draw to draw, and one
that the text says does not; draws whose errors are the same agree on them, so nothing is gained
where a model is wrong in the same way each time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from recsys.content.attributes import Attribute, Value


def agreed(draws: Sequence[Mapping[str, Attribute] | None], share: float) -> dict[str, Attribute]:
    """Keep the values that at least a share of the draws gives, with that share.

    Of a list, each entry is kept by itself, in the order of the draw that names it first.
    """
    kept: dict[str, Attribute] = {}
    for name in dict.fromkeys(name for draw in draws for name in draw or ()):
        given = [draw[name] for draw in draws if draw and name in draw]
        votes = Counter(vote for one in given for vote in votes_of(one.value))
        found = {vote: votes[vote] / len(draws) for vote in votes}
        found = {vote: part for vote, part in found.items() if part >= share}
        if not found:
            continue
        first = given[0]
        written = {vote_of(one): one for each in reversed(given) for one in entries_of(each.value)}
        entries = tuple(written[vote] for vote in found)
        value: Value = entries[0] if isinstance(first.value, str) else entries
        kept[name] = first._replace(value=value, agreement=min(found.values()))
    return kept


def entries_of(value: Value) -> tuple[str, ...]:
    """Return the entries of a list, or a text as the only one."""
    return (value,) if isinstance(value, str) else tuple(value)


def vote_of(entry: str) -> str:
    """Compare words whatever their case."""
    return entry.casefold()


def votes_of(value: Value) -> list[str]:
    """Count an entry once, however often an answer names it."""
    return list(dict.fromkeys(vote_of(one) for one in entries_of(value)))
