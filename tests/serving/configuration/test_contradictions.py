"""Rules and experiments that cannot hold together are refused with both names."""

import tomllib

import pytest

from serving.configuration.file import check_configuration

NOVEMBER = "from = 2026-11-01T00:00:00Z\nuntil = 2026-12-01T00:00:00Z\n"
DECEMBER = "from = 2026-12-01T00:00:00Z\nuntil = 2027-01-01T00:00:00Z\n"


def rule(name, kind="hide", items=None, **more):
    given = {"name": name, "kind": kind, **({"items": items} if items else {}), **more}
    if kind == "pin":
        given.setdefault("slot", 1)
    if kind in ("boost", "bury"):
        given.setdefault("places", 5)
    return given


def during(month, given):
    return given | tomllib.loads(month)


def arms(**overrides):
    return [{"name": "control"}, {"name": "new", "overrides": overrides}]


def read(*rules, experiments=(), **surfaces):
    return check_configuration(
        {"rules": list(rules), "experiments": list(experiments), "surfaces": surfaces}
    )


def refused(*rules, **more):
    with pytest.raises(ValueError, match=": ") as caught:
        read(*rules, **more)
    return str(caught.value)


ONE_PIN = rule("one", "pin", ["1"])


UP, DOWN = rule("up", "boost", ["1"]), rule("down", "bury", ["1"])
GONE, TWICE = rule("gone", "hide", ["7", "1"]), rule("other", "pin", ["1"], slot=2)
ONE, OTHER = (
    {"name": "one", "arms": arms(), "surfaces": ["home", "cart"]},
    {"name": "other", "arms": arms(), "surfaces": ["home"]},
)
BACKWARDS = {"from": "2026-12-01T00:00:00Z", "until": "2026-11-01T00:00:00Z"}
KNOWN, ANONYMOUS = {"users": {"visitors": "known"}}, {"users": {"visitors": "anonymous"}}
PRICE = {"where": "price < 5"}


@pytest.mark.parametrize(
    ("rules", "more", "message"),
    [
        (
            [ONE_PIN, rule("other", "pin", ["2"])],
            {},
            "serving.toml: rules 'one' and 'other' both pin to slot 1 of one surface at one time; "
            "choose another slot, or part their surfaces, users or times",
        ),
        ([ONE_PIN, rule("b", "pin", ["2"], **ANONYMOUS)], {}, "'one' and 'b'"),
        ([ONE_PIN, GONE], {}, "rules 'one' and 'gone': item '1' is pinned and hidden"),
        ([UP, DOWN], {}, "rules 'up' and 'down': item '1' is boosted and buried"),
        (
            [rule("up", "boost", **PRICE), rule("down", "bury", **PRICE)],
            {},
            "'up' and 'down': where price < 5 is boosted and buried",
        ),
        ([ONE_PIN, TWICE], {}, "'one' and 'other': item '1' is pinned twice on one surface"),
        (
            [ONE_PIN | {"slot": 11}],
            {"home": {"k": 5, "max_k": 10}},
            "rule 'one' pins to slot 11, and lists of surface 'home' have at most 10",
        ),
        ([ONE_PIN | BACKWARDS], {}, "until (2026-11-01T00:00:00+00:00) must be after from"),
        ([], {"experiments": [ONE | BACKWARDS]}, "[[experiments]] 'one': until"),
        (
            [ONE_PIN | {"surfaces": ["hoem"]}],
            {},
            "serving.toml: [[rules]] 'one': surfaces: unknown 'hoem'; did you mean 'home'?",
        ),
        ([], {"experiments": [ONE | {"surfaces": ["checkout"]}]}, "unknown 'checkout'"),
        ([], {"experiments": [ONE, OTHER]}, "experiments 'one' and 'other' run on one surface"),
    ],
)
def test_what_contradicts_is_refused_with_both_names(rules, more, message):
    assert message in refused(*rules, **more)


@pytest.mark.parametrize(
    ("rules", "more"),
    [
        ([rule("a", "pin", ["1"], **KNOWN), rule("b", "pin", ["2"], **ANONYMOUS)], {}),
        ([during(NOVEMBER, ONE_PIN), during(DECEMBER, GONE)], {}),
        ([UP, DOWN | {"priority": 1}], {}),
        ([ONE_PIN | {"surfaces": ["home"]}, TWICE | {"surfaces": ["cart"]}], {}),
        ([], {"experiments": [ONE, OTHER | {"surfaces": ["session"]}]}),
        ([], {"experiments": [during(NOVEMBER, ONE), during(DECEMBER, OTHER)]}),
    ],
)
def test_what_never_meets_is_read(rules, more):
    found = read(*rules, **more)
    assert len(found.rules) + len(found.experiments) == 2


def test_what_may_contradict_is_a_warning():
    found = read(
        ONE_PIN,
        rule("cheap", "hide", where="price < 5"),
        rule("up", "boost", where="brand = 'acme'"),
        rule("down", "bury", ["1", "2"]),
    )
    assert found.warnings == (
        "rules 'one' and 'cheap': an item that is in both is pinned and hidden; remove it from one "
        "of them",
        "rules 'up' and 'down': an item that is in both is boosted and buried with equal priority; "
        "give one of them a higher priority",
    )
