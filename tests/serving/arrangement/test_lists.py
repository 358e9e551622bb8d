"""Rules, diversity, caps, exploration and surfaces in the lists that are served."""

from collections import Counter

import orjson
import pytest

from serving.configuration.file import check_configuration
from serving.list_record import write_record
from serving.online.store import RecentEvent, Visitor
from serving.query import RequestError
from serving.recommend import Recommender
from serving.schemas import Context, Request
from tests.serving.test_live import MemoryStore


@pytest.fixture(scope="module")
def bundle(released):
    return Recommender.load(released / "current").bundle


@pytest.fixture
def of(bundle):
    def made(table):
        return Recommender(bundle, configuration=check_configuration(table))

    return made


def listed(reply):
    return [item.item_id for item in reply.items]


def rule(name, kind, **more):
    return {"name": name, "kind": kind, **more}


@pytest.fixture
def plain(of):
    return listed(of({}).answer(Request(user_id="user-2", k=10)))


def test_pins_stand_in_their_slots_and_the_rest_keeps_its_order(of, plain):
    hidden_last = plain[9]
    table = {
        "rules": [
            rule("second", "pin", items=[hidden_last], slot=2),
            rule("tens", "pin", where="category in ['tens']", slot=4, surfaces=["home"]),
        ]
    }
    recommender = of(table)
    made = recommender.make(Request(user_id="user-2", k=10))
    found = listed(made.reply)
    assert found[1] == hidden_last
    assert "tens" in (made.reply.items[3].categories or ())
    rest = [item_id for item_id in found if item_id not in (found[1], found[3])]
    assert rest == [item_id for item_id in plain if item_id in rest]
    assert len(set(found)) == 10
    slots = orjson.loads(write_record(recommender, made))["items"]
    assert [slot.get("rules") for slot in slots[:4]] == [None, ["second"], None, ["tens"]]


def test_boosted_items_go_up_and_buried_ones_down(of, plain):
    table = {
        "rules": [
            rule("up", "boost", items=[plain[6]], places=4),
            rule("down", "bury", items=[plain[0]], places=3),
        ]
    }
    found = listed(of(table).answer(Request(user_id="user-2", k=10)))
    expected = [one for one in plain if one not in (plain[0], plain[6])]
    # Place 6 goes before place 2, and place 0 behind place 3.
    expected.insert(1, plain[6])
    expected.insert(4, plain[0])
    assert found == expected


def test_rules_hide_items_on_their_surfaces_while_they_hold(of, plain):
    table = {
        "rules": [
            rule("gone", "hide", items=plain[:2], surfaces=["home"]),
            rule("later", "hide", items=[plain[2]], **{"from": "2100-01-01T00:00:00Z"}),
        ]
    }
    recommender = of(table)
    found = listed(recommender.answer(Request(user_id="user-2", k=8)))
    assert not set(plain[:2]) & set(found)
    assert plain[2] in found
    later = Request(user_id="user-2", k=8, context=Context(unix_time=4_200_000_000))
    assert plain[2] not in listed(recommender.answer(later))
    anywhere = recommender.answer(Request(surface="session", session=["item-9"], k=40))
    assert set(plain[:2]) & set(listed(anywhere))


def test_diversity_of_a_request_and_of_a_surface_are_the_same(of, plain):
    table = {"surfaces": {"home": {"diversity": {"method": "mmr", "strength": 0.8}}}}
    by_surface = listed(of(table).answer(Request(user_id="user-2", k=10)))
    by_request = listed(of({}).answer(Request(user_id="user-2", k=10, diversity=0.8)))
    assert by_surface == by_request != plain
    kept = of(table).answer(Request(user_id="user-2", k=10, diversity=0.0))
    assert listed(kept) == plain


@pytest.mark.parametrize("method", ["epsilon", "plackett_luce"])
def test_what_is_explored_is_logged_and_can_be_made_again(of, bundle, method):
    recommender = of({"surfaces": {"home": {"exploration": {"method": method}}}})
    store = MemoryStore()
    recommender.connect(lambda: store, keeps_lists=True)
    request = Request(user_id="user-2", k=10)
    lists = set()
    for _ in range(50):
        made = recommender.make(request)
        record = orjson.loads(write_record(recommender, made))
        assert all(0 < slot["propensity"] <= 1 for slot in record["items"])
        lists.add(tuple(listed(made.reply)))
        visitor = Visitor([RecentEvent(*event) for event in record.get("live", ())])
        again = recommender.make(
            Request.model_validate(record["request"]),
            now_ms=record["unix_ms"],
            visitor=visitor,
            seed=record["seed"],
        )
        assert again.reply.items == made.reply.items
    assert len(lists) > 1


def test_an_experiment_gives_each_user_one_arm_and_says_which(of):
    arms = [{"name": "as before"}, {"name": "capped", "overrides": {"caps": {"category": 2}}}]
    recommender = of({"experiments": [{"name": "caps", "surfaces": ["home"], "arms": arms}]})
    seen = Counter()
    for number in range(60):
        request = Request(user_id=f"visitor-{number}", k=12)
        reply = recommender.answer(request)
        assert reply.experiment == recommender.answer(request).experiment
        assert reply.experiment.name == "caps"
        seen[reply.experiment.arm] += 1
        counts = Counter(name for item in reply.items for name in item.categories or ())
        assert (max(counts.values()) <= 2) == (reply.experiment.arm == "capped")
    assert min(seen["as before"], seen["capped"]) >= 15
    assert recommender.answer(Request(k=3)).experiment is None


def test_a_surface_has_a_filter_a_length_and_bounds_of_its_own(of):
    table = {
        "surfaces": {"tens": {"kind": "home", "filter": "category = 'tens'", "k": 2, "max_k": 3}}
    }
    recommender = of(table)
    reply = recommender.answer(Request(surface="tens"))
    assert len(reply.items) == 2
    assert all("tens" in item.categories for item in reply.items)
    with pytest.raises(RequestError, match="takes k from 1 to 3, got 4"):
        recommender.answer(Request(surface="tens", k=4))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"surface": "cart"}, "needs session"),
        ({"surface": "session", "session": []}, "needs session"),
        ({"surface": "search"}, "needs query"),
        ({"surface": "related"}, "needs item_id"),
        ({"query": "x"}, "takes no query; name a surface of kind 'search'"),
        ({"surface": "related", "item_id": "item-1", "user_id": "u"}, "not user_id or session"),
    ],
)
def test_a_request_brings_what_its_surface_needs(of, body, message):
    with pytest.raises(RequestError, match=message):
        of({}).answer(Request.model_validate(body))


EXPLORING = {
    "epsilon": {"exploration": {"method": "epsilon", "epsilon": 0.4}},
    "plackett_luce": {"exploration": {"method": "plackett_luce"}},
    "capped": {"exploration": {"method": "epsilon", "epsilon": 0.4}, "caps": {"category": 4}},
    "diverse": {"exploration": {"method": "epsilon"}, "diversity": {"method": "mmr"}},
}


@pytest.mark.parametrize("name", EXPLORING)
def test_chances_of_a_list_that_was_drawn_are_its_propensities(of, name):
    rules = [rule("second", "pin", items=["item-7"], slot=2)]
    recommender = of({"surfaces": {"home": EXPLORING[name]}, "rules": rules})
    for seed in range(8):
        made = recommender.make(Request(user_id="user-2", k=6), seed=seed)
        rows = [recommender.bundle.catalogue.row_of(one) for one in listed(made.reply)]
        found = recommender.arranger.slot_chances(
            rows, made.ranked, made.resolved, made.query, made.eligible.mask
        )
        assert [one.chance for one in found] == list(made.listed.arranged.propensities)
        for row, one in zip(rows, found, strict=True):
            assert one.chances.sum() == pytest.approx(1, abs=1e-9)
            assert one.chances[one.item_rows == row].tolist() == [one.chance]


def test_why_not_names_the_rule_the_cap_and_the_surface(of, plain):
    from serving.explanation.served_list import explain_list
    from serving.online.records import record_of

    table = {
        "rules": [rule("gone", "hide", items=[plain[0]])],
        "surfaces": {
            "home": {"caps": {"category": 2}},
            "tens": {"kind": "home", "filter": "category = 'tens'"},
        },
    }
    recommender = of(table)

    def why(item_id, **request):
        made = recommender.make(Request(user_id="user-2", **request))
        record = record_of(write_record(recommender, made))
        return explain_list(recommender, record, item_id, names_history=True).why_not

    assert why(plain[0], k=5).detail == "rule 'gone' hides it on this surface"
    assert why("item-9", surface="tens").code == "not_on_surface"
    capped = [one for one in plain[1:6] if why(one, k=6).code == "rearranged"]
    assert capped
    assert "the caps of the surface" in why(capped[0], k=6).detail
