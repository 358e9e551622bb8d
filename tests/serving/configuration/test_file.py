"""A serving configuration is read as it is written, and refused by name where it is wrong."""

import tomllib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recsys.retrieval.blend.config import FILL
from serving.configuration.file import ServingConfiguration, check_configuration, read_configuration
from serving.surfaces import BUILT_IN, HOME, Diversity, Exploration


def read(text: str) -> ServingConfiguration:
    return check_configuration(tomllib.loads(text))


def refused(text: str) -> str:
    with pytest.raises(ValueError, match=": ") as caught:
        read(text)
    return str(caught.value)


PIN = 'name = "launch"\nkind = "pin"\nitems = ["242"]\nslot = 1\n'


def test_a_table_changes_what_it_names_and_nothing_else():
    surfaces = read(
        """
        [surfaces.home]
        diversity = {strength = 0.4}
        caps = {category = 3, brand = 2}
        not_shown_within = "6h"
        filter = "price < 50"
        k = 12
        """
    ).surfaces
    home = surfaces["home"]
    assert home.diversity == Diversity(method="mmr", strength=0.4)
    assert (home.caps, home.k) == ({"category": 3, "brand": 2}, 12)
    assert home.not_shown_within == timedelta(hours=6)
    assert (home.weights, home.learned) == (HOME.weights, True)
    assert {name: one for name, one in surfaces.items() if name != "home"} == {
        name: one for name, one in BUILT_IN.items() if name != "home"
    }


def test_a_surface_of_ones_own_starts_from_its_kind():
    checkout = read(
        """
        [surfaces.checkout]
        kind = "cart"
        exploration = {method = "plackett_luce", temperature = 0.2}
        """
    ).surfaces["checkout"]
    assert (checkout.name, checkout.kind) == ("checkout", "cart")
    assert checkout.weights == BUILT_IN["cart"].weights
    assert checkout.exploration == Exploration(method="plackett_luce", temperature=0.2)


def test_sources_of_a_file_take_the_place_of_the_learned_blend():
    text = "[surfaces.home]\nsources = {two_tower = 1, popularity = 0.001}"
    home = read(text).surfaces["home"]
    assert home.weights == {"two_tower": 1.0, "popularity": FILL}
    assert not home.learned
    assert read(f"{text}\nlearned = true").surfaces["home"].learned


def test_times_are_toml_times_or_texts():
    rule = read(
        f"[[rules]]\n{PIN}from = 2026-11-01T00:00:00+01:00\nuntil = '2026-12-01T00:00:00Z'"
    ).rules[0]
    assert rule.since == datetime(2026, 10, 31, 23, tzinfo=UTC)
    assert rule.until == datetime(2026, 12, 1, tzinfo=UTC)


HOME_FAULTS = [
    ("max_histroy = 3", "unknown 'max_histroy'; did you mean 'max_history'?"),
    ("name = 'x'", "the table's own name is the surface's"),
    ("diversity = {methd = 'mmr'}", "unknown 'diversity.methd'; did you mean 'method'?"),
    ("diversity = {method = 'mm'}", "diversity.method = 'mm': input should be 'mmr' or 'none'"),
    ("diversity = {strength = 1.5}", "diversity.strength = 1.5: input should be less than"),
    ("diversity = {strength = nan}", "diversity.strength = nan"),
    ("k = true", "k = True: input should be a valid integer"),
    ("k = 30\nmax_k = 20", "needs min_k <= k <= max_k, got 1, 30, 20"),
    ("caps = {brand = 0}", "caps.brand = 0: input should be greater than or equal to 1"),
    ("not_shown_within = '6 hours'", "90s, 30m, 6h or 7d"),
    ("not_shown_within = '0s'", "not_shown_within = '0s'"),
    ("filter = 'price <'", "filter = 'price <': character 8"),
    ("sources = {Two-Tower = 1}", "unknown source; did you mean 'two_tower'?"),
    ("sources = {popularity = -1}", "sources.popularity = -1"),
    ("sources = {popularity = 0}", "needs sources with weights >= 0 and one above"),
    ("sources = {search = 1}", "no others may have it"),
    ("exploration = {method = 'epsilon', temperature = 2}", "temperature is not for method"),
]
RULE_FAULTS = [
    ("kind = 'hide'", "a rule that hides needs items, where, or both"),
    ("kind = 'pin'\nitems = ['1']", "a rule that pins needs slot"),
    ("kind = 'boost'\nitems = ['1']", "a rule that boosts needs places"),
    ("kind = 'hide'\nitems = ['1']\nslot = 2", "slot is for pin, not for 'hide'"),
    ("kind = 'hide'\nitems = ['1', '1']", "'1' stands there twice"),
    ("kind = 'hide'\nwhere = 'price <'", "where = 'price <': character 8"),
    ("from = 2026-11-01T00:00:00", "a time needs its offset from UTC"),
    ("since = 2026-11-01T00:00:00Z", "unknown 'since'"),
    ("users = {domain = ['a']}", "unknown 'users.domain'; did you mean 'domains'?"),
]
ARM_FAULTS = [
    ("", "at least 2 items"),
    ("{name = 'a'}", "two arms are called 'a'"),
    ("{name = 'b', weight = 0}", "arms[1].weight = 0: input should be greater than 0"),
    ("{name = 'b', overrides = {k = 3}}", "unknown 'arms[1].overrides.k'"),
    ("{name = 'b', overrides = {sources = {search = 1}}}", "no others may have it"),
]
FAULTS = [
    ("[surface.home]", "serving.toml: surface: unknown 'surface'; did you mean 'surfaces'?"),
    ("[surfaces.hom]\nk = 3", "or session or search; or did you mean [surfaces.home]?"),
    ("[surfaces.x]\nkind = 'hme'", "kind = 'hme': input should be 'home'"),
    ("surfaces = 3", "write tables such as [surfaces.home]"),
    ("surfaces = {home = 3}", "[surfaces.home]: is 3; write a table"),
    ("rules = 'x'", "write tables such as [[rules]]"),
    ("rules = [3]", "[[rules]] number 1: is 3; write a table"),
    ("[[rules]]\nkind = 'hide'\nitems = ['1']", "[[rules]] number 1: name is missing"),
    (f"[[rules]]\n{PIN}[[rules]]\n{PIN}", "there are two of this name"),
    *((f"[surfaces.home]\n{text}", said) for text, said in HOME_FAULTS),
    *((f"[[rules]]\nname = 'x'\n{text}", said) for text, said in RULE_FAULTS),
    *(
        (f"[[experiments]]\nname = 'x'\nsurfaces = ['home']\narms = [{{name = 'a'}},{arm}]", said)
        for arm, said in ARM_FAULTS
    ),
]


def test_what_is_wrong_is_said_with_table_key_value_and_what_is_allowed():
    assert [(text, said) for text, said in FAULTS if said not in refused(text)] == []


def test_a_file_that_cannot_be_read_says_why(tmp_path):
    path = tmp_path / "serving.toml"
    for content, said in (
        (b"[surfaces", "is not valid TOML"),
        (b"\xff\xfe", "cannot read"),
        (b"#" * (5 << 20), "is larger than"),
        (b"surfaces = " + b"[" * 5_000, "serving.toml"),
    ):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=said):
            read_configuration(path)
    with pytest.raises(ValueError, match=r"did you mean .*serving\.toml\?"):
        read_configuration(tmp_path / "servng.toml")
    with pytest.raises(ValueError, match="cannot read"):
        read_configuration(tmp_path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.datetimes(),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)
NAMED = ("name", "kind", "sources", "k", "diversity", "caps", "filter", "items", "where", "slot")
MORE = ("places", "from", "until", "users", "arms", "surfaces", "exploration", "overrides")
KEYS = st.sampled_from([*NAMED, *MORE]) | st.text(max_size=5)
PARTS = st.dictionaries(KEYS, VALUES, max_size=5)


TABLES = st.fixed_dictionaries(
    {},
    optional={
        "surfaces": VALUES | st.dictionaries(st.sampled_from(["home", "x"]), PARTS, max_size=2),
        "rules": VALUES | st.lists(PARTS, max_size=3),
        "experiments": VALUES | st.lists(PARTS, max_size=3),
    },
)


def complaint(read: Callable[..., object], *arguments: object) -> str | None:
    """What a reader refuses with; anything but ValueError fails the test."""
    try:
        read(*arguments)
    except ValueError as error:
        return str(error)
    return None


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(TABLES)
def test_any_tables_are_a_configuration_or_a_refusal(table: dict[str, Any]):
    said = complaint(check_configuration, table)
    assert said is None or said.startswith("serving.toml: ")
