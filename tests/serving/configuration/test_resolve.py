"""A request gets its surface, the rules that hold for it, and its arm."""

from datetime import UTC, datetime

import pytest

from serving.configuration.file import check_configuration
from serving.configuration.resolve import Resolver, UnknownSurfaceError
from serving.surfaces import Diversity

CONFIGURATION = check_configuration(
    {
        "rules": [
            {"name": "always", "kind": "hide", "items": ["1"]},
            {
                "name": "november",
                "kind": "pin",
                "items": ["2"],
                "slot": 1,
                "from": "2026-11-01T00:00:00Z",
                "until": "2026-12-01T00:00:00Z",
                "priority": 3,
            },
            {
                "name": "gardeners",
                "kind": "boost",
                "where": "price < 5",
                "places": 2,
                "surfaces": ["home"],
                "users": {"domains": ["garden"], "visitors": "known"},
            },
        ],
        "experiments": [
            {
                "name": "diversity",
                "surfaces": ["home", "cart"],
                "from": "2026-11-10T00:00:00Z",
                "arms": [
                    {"name": "control", "weight": 3},
                    {
                        "name": "diverse",
                        "overrides": {"diversity": {"strength": 0.5}, "sources": {"ease": 1}},
                    },
                ],
            }
        ],
    }
)


def moment(month, day):
    return datetime(2026, month, day, tzinfo=UTC).timestamp()


@pytest.fixture(scope="module")
def resolver():
    return Resolver(CONFIGURATION, exclude_history=True)


def names(resolved):
    return [rule.name for rule in resolved.rules]


def test_rules_hold_from_their_first_moment_until_before_their_last(resolver):
    def at(unix_time):
        return names(resolver.resolve("cart", None, unix_time))

    first, last = moment(11, 1), moment(12, 1)
    assert at(first - 0.001) == at(last) == at(0) == ["always"]
    assert at(first) == at(last - 0.001) == ["november", "always"]


def test_rules_are_for_their_surfaces_domains_and_visitors(resolver):
    def on(surface, user_id, domain):
        return "gardeners" in names(resolver.resolve(surface, user_id, 0, domain))

    assert on("home", "u", "garden")
    assert not on("home", None, "garden")
    assert not on("home", "u", "books")
    assert not on("home", "u", None)
    assert not on("session", "u", "garden")


def test_an_arm_changes_its_surface(resolver):
    home = resolver.surfaces["home"]
    for n in range(50):
        surface, _, experiment, arm, _ = resolver.resolve("home", f"u{n}", moment(11, 20))
        assert experiment == "diversity"
        if arm == "control":
            assert surface == home
        else:
            assert surface.diversity == Diversity(strength=0.5)
            assert (surface.weights, surface.learned) == ({"ease": 1.0}, False)
            assert surface.num_candidates == home.num_candidates


def test_there_is_no_arm_before_the_experiment_elsewhere_or_without_a_user(resolver):
    running = moment(11, 20)
    assert resolver.resolve("home", "u", moment(11, 9)).arm is None
    assert resolver.resolve("session", "u", running).arm is None
    assert resolver.resolve("home", None, running).experiment is None


def test_an_unknown_surface_is_named_with_those_there_are(resolver):
    with pytest.raises(UnknownSurfaceError, match="unknown surface 'hoem'; this server has home"):
        resolver.resolve("hoem", None, 0)
