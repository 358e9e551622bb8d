"""Contradictions of a serving configuration, found when it is read.

A certain contradiction is refused with both names; a possible one is a warning, since only a bundle
tells which items an expression has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

from serving.configuration.rules import Experiment, Rule
from serving.surfaces import Surface


def contradictions(
    surfaces: Mapping[str, Surface], rules: Sequence[Rule], experiments: Sequence[Experiment]
) -> Iterator[str]:
    """List the settings that cannot hold together."""
    for one, other in combinations(experiments, 2):
        if one.meets(other):
            yield (
                f"experiments {one.name!r} and {other.name!r} run on one surface at one time; "
                "part their surfaces, or their from and until"
            )
    pins = [(rule, rule.slot) for rule in rules if rule.slot is not None]
    for rule, slot in pins:
        for name, surface in surfaces.items():
            if rule.on(name) and slot > surface.max_k:
                yield (
                    f"rule {rule.name!r} pins to slot {slot}, and lists of surface {name!r} "
                    f"have at most {surface.max_k}; choose a lower slot or raise its max_k"
                )
    for (first, slot), (second, its_slot) in combinations(pins, 2):
        if slot == its_slot and first.meets(second):
            yield (
                f"rules {first.name!r} and {second.name!r} both pin to slot {slot} of one surface "
                "at one time; choose another slot, or part their surfaces, users or times"
            )
    yield from (sentence for sentence, is_certain in clashes(rules) if is_certain)


def clashes(rules: Sequence[Rule]) -> Iterator[tuple[str, bool]]:
    """List what two rules do to an item of both, and whether there certainly is such an item.

    There is if both name it, or have the same expression; there may be if one has an expression.
    """
    for one, other in combinations(rules, 2):
        complaint = _complaint(one, other)
        if complaint is None or not one.meets(other):
            continue
        named = f"rules {one.name!r} and {other.name!r}"
        others = set(other.items)
        shared = next((item_id for item_id in one.items if item_id in others), None)
        if one.where is None and other.where is None:
            if shared is not None:
                yield f"{named}: item {shared!r} is {complaint}", True
        elif one.where == other.where and not one.items and not other.items:
            yield f"{named}: where {one.where} is {complaint}", True
        elif shared or not one.items or not other.items:
            yield f"{named}: an item that is in both is {complaint}", False


def _complaint(one: Rule, other: Rule) -> str | None:
    kinds = {one.kind, other.kind}
    if kinds == {"pin", "hide"}:
        return "pinned and hidden; remove it from one of them"
    if kinds == {"boost", "bury"} and one.priority == other.priority:
        return "boosted and buried with equal priority; give one of them a higher priority"
    # Pins of expressions never show one item twice: the second takes its next.
    if kinds == {"pin"} and one.where is None and other.where is None:
        return "pinned twice on one surface; remove it from one of them"
    return None


def list_variants(
    surfaces: Mapping[str, Surface], experiments: Sequence[Experiment]
) -> Iterator[tuple[str, Surface]]:
    """List the surfaces as they are and as each arm makes them, with words for which it is."""
    for name, surface in surfaces.items():
        yield f"surface {name!r}", surface
        for experiment in experiments:
            for arm in experiment.arms if experiment.on(name) else ():
                words = f"arm {arm.name!r} of experiment {experiment.name!r} on surface {name!r}"
                yield words, arm.overrides.of(surface)
