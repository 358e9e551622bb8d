"""Known words that are spelt nearly like others."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

MIN_CORRECTED = 4
"""Characters of the shortest word that is corrected alone; a shorter one could be any word."""
MIN_BESIDE_OTHERS = 3
"""The same where other words of the query tell which word is meant."""
LONG_WORD = 8
"""Length of a word from which two typos are corrected."""
MAX_OPTIONS = 16
SHORTEST_PART = 3
"""Letters of the shortest word that a longer one is cut into."""


class Spelling:
    """Words that are known, the better known first."""

    def __init__(self, words: Iterable[str]) -> None:
        self._places = {word: place for place, word in enumerate(dict.fromkeys(words))}
        self._sorted = sorted(self._places)
        # A typo leaves a word's first or its last letter as it is.
        self._alike: dict[tuple[int, str, int], list[str]] = {}
        for word in self._places:
            for end in (0, -1):
                self._alike.setdefault((end, word[end], len(word)), []).append(word)

    def is_known(self, word: str) -> bool:
        """Return whether a known word begins with this one."""
        place = bisect_left(self._sorted, word)
        return place < len(self._sorted) and self._sorted[place].startswith(word)

    def parted(self, word: str) -> list[str]:
        """Cut a word into known ones, such as "starwars"; empty if it is not made of any."""
        if word in self._places:
            return [word]
        for end in range(len(word) - SHORTEST_PART, SHORTEST_PART - 1, -1):
            if word[:end] in self._places and (rest := self.parted(word[end:])):
                return [word[:end], *rest]
        return []

    def near(self, word: str, shortest: int = MIN_CORRECTED) -> list[str]:
        """List words with few edits (a swap of neighbours is one), the nearest first.

        They have the same first or the same last letter. Of equally near ones the better known
        comes first.
        """
        # The library is imported where a word is misspelt: recsys runs without it otherwise.
        from rapidfuzz.distance import OSA
        from rapidfuzz.process import extract

        if len(word) < shortest:
            return []
        most = 1 if len(word) < LONG_WORD else 2
        lengths = range(len(word) - most, len(word) + most + 1)
        found = set()
        for end, length in ((end, length) for end in (0, -1) for length in lengths):
            alike = self._alike.get((end, word[end], length), ())
            for other, edits, _ in extract(
                word, alike, scorer=OSA.distance, score_cutoff=most, limit=None
            ):
                found.add((edits, self._places[other], other))
        return [other for *_, other in sorted(found)[:MAX_OPTIONS]]
