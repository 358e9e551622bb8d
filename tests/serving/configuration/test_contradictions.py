"""Rules and experiments that cannot hold together are refused with both names."""

import tomllib

import pytest

from serving.configuration.file import configuration_of

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
    return configuration_of(
        {"rules": list(rules), "experiments": list(experiments), "surfaces": surfaces}
    )


def refused(*rules, **more):
    with pytest.raises(ValueError, match=": ") as caught:
        read(*rules, **more)
    return str(caught.value)


ONE_PIN = rule("one", "pin", ["1"])


def test_two_pins_on_one_slot():
    said = refused(ONE_PIN, rule("other", "pin", ["2"]))
    assert said == (
        "serving.toml: rules 'one' and 'other' both pin to slot 1 of one surface at one time; "
        "choose another slot, or part their surfaces, users or times"
    )


@pytest.mark.parametrize(
    "parted",
    [
        {"slot": 2},
        {"surfaces": ["cart"]},
        {"users": {"domains": ["garden"]}},
        tomllib.loads(DECEMBER),
    ],
)
def test_pins_that_never_meet_may_have_one_slot(parted):
    here = {"surfaces": ["home"], "users": {"domains": ["books"]}, **tomllib.loads(NOVEMBER)}
    there = {**here, **parted}
    assert len(read(rule("a", "pin", ["1"], **here), rule("b", "pin", ["2"], **there)).rules) == 2


def test_known_and_anonymous_visitors_never_meet():
    known, anonymous = {"visitors": "known"}, {"visitors": "anonymous"}
    both = rule("b", "pin", ["2"], users=anonymous)
    assert read(rule("a", "pin", ["1"], users=known), both).rules
    assert "'a' and 'b'" in refused(rule("a", "pin", ["1"]), both)


def test_an_item_that_is_pinned_and_hidden():
    said = refused(ONE_PIN, rule("gone", "hide", ["7", "1"]))
    assert "rules 'one' and 'gone': item '1' is pinned and hidden" in said
    assert read(during(NOVEMBER, ONE_PIN), during(DECEMBER, rule("gone", "hide", ["1"]))).rules


def test_an_item_that_is_boosted_and_buried_with_equal_priority():
    up, down = rule("up", "boost", ["1"]), rule("down", "bury", ["1"])
    assert "rules 'up' and 'down': item '1' is boosted and buried" in refused(up, down)
    assert read(up, down | {"priority": 1}).rules


def test_an_expression_that_is_boosted_and_buried():
    up, down = rule("up", "boost", where="price < 5"), rule("down", "bury", where="price < 5")
    assert "'up' and 'down': where price < 5 is boosted and buried" in refused(up, down)


def test_an_item_that_is_pinned_twice_on_one_surface():
    said = refused(ONE_PIN, rule("other", "pin", ["1"], slot=2))
    assert "rules 'one' and 'other': item '1' is pinned twice on one surface" in said
    home, cart = {"surfaces": ["home"]}, {"surfaces": ["cart"], "slot": 2}
    assert read(ONE_PIN | home, rule("other", "pin", ["1"], **cart)).rules


def test_more_pins_of_one_value_than_a_cap():
    pins = [rule(f"p{slot}", "pin", slot=slot, where="brand = 'acme'") for slot in (1, 2, 3)]
    said = refused(*pins, home={"caps": {"brand": 2}})
    assert "rules 'p1' and 'p2' and 'p3' pin 3 items of brand 'acme'" in said
    assert "surface 'home' has a cap of 2" in said
    assert read(*pins, home={"caps": {"brand": 3}}).rules
    later = [*pins[:2], during(DECEMBER, pins[2])]
    early = [during(NOVEMBER, pins[0]), *later[1:]]
    assert "p3" in refused(*later, home={"caps": {"brand": 2}})
    assert read(*early, home={"caps": {"brand": 2}}).rules


def test_more_pins_than_an_arm_has_a_cap_for():
    pins = [rule(f"p{slot}", "pin", slot=slot, where="brand in ['acme']") for slot in (1, 2)]
    experiment = {"name": "e", "surfaces": ["cart"], "arms": arms(caps={"brand": 1})}
    said = refused(*pins, experiments=[experiment])
    assert "arm 'new' of experiment 'e' on surface 'cart' has a cap of 1" in said


def test_a_slot_beyond_the_longest_list():
    said = refused(ONE_PIN | {"slot": 11}, home={"k": 5, "max_k": 10})
    assert "rule 'one' pins to slot 11, and lists of surface 'home' have at most 10" in said


def test_an_end_before_the_begin():
    backwards = {"from": "2026-12-01T00:00:00Z", "until": "2026-11-01T00:00:00Z"}
    assert "until (2026-11-01T00:00:00+00:00) must be after from" in refused(ONE_PIN | backwards)
    experiment = {"name": "e", "arms": arms(), **backwards}
    assert "[[experiments]] 'e': until" in refused(experiments=[experiment])


def test_an_unknown_surface():
    said = refused(ONE_PIN | {"surfaces": ["hoem"]})
    assert said == "serving.toml: [[rules]] 'one': surfaces: unknown 'hoem'; did you mean 'home'?"
    experiment = {"name": "e", "arms": arms(), "surfaces": ["checkout"]}
    assert "unknown 'checkout'" in refused(experiments=[experiment])


def test_two_experiments_on_one_surface_at_one_time():
    one = {"name": "one", "arms": arms(), "surfaces": ["home", "cart"]}
    other = {"name": "other", "arms": arms(), "surfaces": ["home"]}
    assert "experiments 'one' and 'other' run on one surface" in refused(experiments=[one, other])
    assert read(experiments=[one, other | {"surfaces": ["session"]}]).experiments
    assert read(experiments=[during(NOVEMBER, one), during(DECEMBER, other)]).experiments


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


def test_lists_of_items_without_a_shared_one_are_no_contradiction():
    found = read(
        rule("up", "boost", ["1"], where="price < 5"),
        rule("down", "bury", ["2"], where="price > 1"),
    )
    assert found.warnings == ()
