"""The surface, the rules and the arm of one request.

Everything that a request need not decide is worked out once: for each surface the moments at which
a rule begins or ends, the rules that hold between them, and the surface as each arm makes it.
"""

from __future__ import annotations

import hashlib
import math
from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from serving.configuration.file import ServingConfiguration
from serving.configuration.rules import ALWAYS, Arm, Experiment, Rule, holds
from serving.surfaces import Surface, find_surfaces

RANGE = float(1 << 64)


class Resolved(NamedTuple):
    """How one request is answered."""

    surface: Surface
    """With what the arm changes."""
    rules: tuple[Rule, ...]
    """Those that hold, of the highest priority first, then as the file lists them."""
    experiment: str | None = None
    arm: str | None = None
    bundle: str | None = None
    """Version of the bundle that the arm names."""


class UnknownSurfaceError(ValueError):
    """There is no surface of this name."""


class Resolver:
    """Resolves requests for one configuration and bundle."""

    def __init__(self, configuration: ServingConfiguration, exclude_history: bool) -> None:
        """Work out what requests share.

        Args:
            exclude_history: Whether surfaces that do not say leave out the history.
        """
        settled = find_surfaces(exclude_history, configuration.surfaces)
        self._planned = {name: _Plan(surface, configuration) for name, surface in settled.items()}
        self.surfaces: Mapping[str, Surface] = settled
        """By name, without any arm."""

    def resolve(
        self, surface: str, user_id: str | None, unix_time: float, domain: str | None = None
    ) -> Resolved:
        """Find what counts for a request.

        Raises:
            UnknownSurfaceError: Names the surfaces that there are.
        """
        plan = self._planned.get(surface)
        if plan is None:
            raise UnknownSurfaceError(
                f"unknown surface {surface!r}; this server has {', '.join(self._planned)}"
            )
        return plan.resolve(user_id, unix_time, domain)


class _Plan:
    """One surface with the spans between two changes of its rules and experiments."""

    def __init__(self, surface: Surface, configuration: ServingConfiguration) -> None:
        rules = [rule for rule in configuration.rules if rule.on(surface.name)]
        rules.sort(key=lambda rule: -rule.priority)
        experiments = [one for one in configuration.experiments if one.on(surface.name)]
        spans = [*(rule.span for rule in rules), *(one.span for one in experiments)]
        moments = {moment for span in spans for moment in span}
        self._begins = sorted({ALWAYS[0], *moments})
        self._rules = [
            tuple(rule for rule in rules if holds(rule.span, begin)) for begin in self._begins
        ]
        assigners = [_Assigner(one, surface) for one in experiments]
        self._assigners = [
            next((one for one in assigners if holds(one.experiment.span, begin)), None)
            for begin in self._begins
        ]
        self._domains = frozenset(domain for rule in rules for domain in rule.users.domains or ())
        self._for_audience: dict[tuple[int, bool, str | None], tuple[Rule, ...]] = {}
        self._surface = surface

    def resolve(self, user_id: str | None, unix_time: float, domain: str | None) -> Resolved:
        place = bisect_right(self._begins, unix_time) - 1
        # What no rule names is all one, so clients cannot make this grow.
        key = (place, user_id is None, domain if domain in self._domains else None)
        rules = self._for_audience.get(key)
        if rules is None:
            rules = tuple(rule for rule in self._rules[place] if rule.users.has(user_id, domain))
            self._for_audience[key] = rules
        assigner = self._assigners[place]
        if assigner is None or user_id is None:
            return Resolved(self._surface, rules)
        arm, surface = assigner.assign(user_id)
        return Resolved(surface, rules, assigner.experiment.name, arm.name, arm.bundle)


class _Assigner:
    """Gives each user an arm, the same on every server and at every time.

    Each arm draws a number for the user, and the one that waits least wins: an exponential waiting
    time with the arm's weight as its rate (weighted rendezvous hashing). An arm wins in the share
    of its weight; where one arm's weight changes, or an arm comes or goes, users move only to it or
    from it. Cutting a single number at cumulated shares would also move users between other arms.
    """

    def __init__(self, experiment: Experiment, surface: Surface) -> None:
        self.experiment = experiment
        self._arms = [(arm, arm.overrides.of(surface)) for arm in experiment.arms]
        self._weights = [arm.weight for arm in experiment.arms]
        salt = experiment.salt or experiment.name
        self._prefixes = [
            hashlib.blake2b(f"{salt}\0{arm.name}\0".encode(), digest_size=8)
            for arm in experiment.arms
        ]

    def assign(self, user_id: str) -> tuple[Arm, Surface]:
        user = user_id.encode("utf-8", "surrogatepass")
        waits = []
        for prefix, weight in zip(self._prefixes, self._weights, strict=True):
            digest = prefix.copy()
            digest.update(user)
            # In (0, 1]: its logarithm is finite.
            drawn = (int.from_bytes(digest.digest(), "big") + 1) / RANGE
            waits.append(-math.log(drawn) / weight)
        return self._arms[waits.index(min(waits))]
