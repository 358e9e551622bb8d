"""Page ``why``: outcomes and steps of loss with known answers; the page on real files."""

import polars as pl
import pytest

from pipelines.dashboard.data.items import read_catalogue
from pipelines.dashboard.query import Query, QueryError
from pipelines.dashboard.why.outcomes import lost_where, read_contest
from pipelines.dashboard.why.users import why_lines
from pipelines.dashboard.why.why import ENTRY, build
from pipelines.pages.document import ItemList, Lists, Section, Table, Window, Words
from tests.pipelines.dashboard.conftest import HOSTILE_TITLES
from tests.pipelines.dashboard.documents import dashboard
from tests.pipelines.dashboard.planted import Model, world, write_workspace


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A run in which the second model loses the heavy users' items and is otherwise the first."""
    known = world(3, num_users=2_000)
    models = {
        "sequence": Model(seed=1, own_noise=0.5),
        "ease": Model(seed=2, own_noise=0.5, shift=lambda one: 4.0 * one.heavy_users),
    }
    path = write_workspace(tmp_path_factory.mktemp("planted") / "run", known, models)
    return dashboard(path)


@pytest.fixture
def pair(planted):
    return Query.of(run=planted.stores.runs()[0].key, first="sequence", second="ease")


def test_outcomes_count_every_query_once(planted, pair):
    page = build(planted, pair)
    shown = read_contest(planted, pair)
    first, second = ((one > 0) & (one <= 10) for one in shown.pairs.known.ranks)
    expected = [(first & second), (first & ~second), (~first & second), ~(first | second)]
    tiles = page.blocks[0].tiles
    assert [tile.value for tile in tiles] == [f"{mark.sum():,}" for mark in expected]
    assert sum(int(tile.value.replace(",", "")) for tile in tiles) == len(shown.pairs.known)


def test_items_are_lost_on_the_step_that_lost_them(planted, tmp_path):
    """Ranks by hand: of each step a known number."""
    context = dashboard(tmp_path)
    known = world(3, num_users=40)
    models = dict.fromkeys(("sequence", "ease", "blend_fast", "ranked"), Model(seed=1))
    path = write_workspace(tmp_path / "run", known, models)
    table = path / "evaluate" / "per_user_given_test.parquet"
    by_hand = [
        (5, 3, 1, 1),  # found
        (200, None, 300, 300),  # no source
        (50, 60, 40, 30),  # every source ranks it low
        (4, 60, 30, 30),  # the blend drops it
        (4, 60, 30, 90),
        (4, 4, 9, 30),  # the ranker drops it
    ]
    frame = pl.read_parquet(table)
    for place, name in enumerate(models):
        ranks = [by_hand[row][place] if row < len(by_hand) else 1 for row in range(frame.height)]
        frame = frame.with_columns(pl.Series(f"rank_{name}", ranks, dtype=pl.Int64))
    frame.write_parquet(table)
    side = read_contest(context, Query.of(first="sequence", second="ranked")).sides[1]
    assert [step.queries for step in lost_where(context, side, 10)] == [1, 1, 2, 1]
    assert lost_where(context, read_contest(context, Query.of(first="sequence")).sides[0], 10) == []


def test_the_table_is_ordered_filtered_and_searched(planted, pair):
    rows = ENTRY.rows["queries"]
    shown = read_contest(planted, pair)
    worst = rows(planted, pair, Window(length=5, order_by=5))
    gains = [row[5] for row in worst.rows]
    assert gains == sorted(gains)
    assert gains[0] < 0
    best_first = rows(planted, pair, Window(length=2000, order_by=3))
    ranks = [row[3] or 101 for row in best_first.rows]
    assert ranks == sorted(ranks)
    lost = rows(planted, Query({**pair.values, "outcome": ("first",)}), Window(length=3))
    assert lost.found == (shown.outcomes == 1).sum()
    assert {row[6] for row in lost.rows} == {"only sequence model"}
    one = rows(planted, pair, Window(search="user-77"))
    assert {cell[0].text for cell in one.rows} <= {f"user-77{rest}" for rest in ("", *range(10))}
    titled = rows(planted, pair, Window(search="TITLE</b> 7 ", length=500))
    assert titled.found == sum("</b> 7 " in row[1] for row in titled.rows) > 0


def test_a_user_is_shown_with_history_lists_and_reasons(context):
    shown = read_contest(context, Query())
    features = shown.features
    user = ENTRY.rows["queries"](context, Query(), Window(length=1)).rows[0][0].text
    page = build(context, Query.of(user=user))
    section = next(one for one in page.blocks if isinstance(one, Section) and one.key == "user")
    lists = next(one for one in section.blocks if isinstance(one, Lists)).lists
    assert len(lists) == 3
    assert isinstance(lists[0], ItemList)
    assert lists[0].entries
    held_out = next(one for one in section.blocks if isinstance(one, Words)).lines[0]
    marked = {one.title for part in lists[1:] for one in part.entries if one.mark == "hit"}
    assert all(title in held_out for title in marked)
    past = {one.item_id for one in lists[0].entries}
    assert all(
        one.mark == "seen" for part in lists[1:] for one in part.entries if one.item_id in past
    )
    ranks = next(one for one in section.blocks if isinstance(one, Table))
    assert {"EASE", "popularity"} <= {row[0] for row in ranks.rows}
    catalogue = read_catalogue(context, features)
    assert {*HOSTILE_TITLES} <= {*catalogue.titles}


def test_unknown_users_are_said_and_bad_parameters_refused(context):
    assert "no user 'nobody'" in " ".join(build(context, Query.of(user="nobody")).notices)
    with pytest.raises(QueryError, match="k is 0; 1 to 20 are allowed"):
        build(context, Query.of(k="0"))
    with pytest.raises(QueryError, match="outcome is 'x'"):
        build(context, Query.of(outcome="x"))


def test_only_the_ranker_stands_behind_the_fast_blend():
    ranks = {"ease": 4, "generative": 1, "blend_fast": 30, "blend": 2, "ranked": 3}
    blend, ranked = (why_lines("List", model, ranks, 10)[0] for model in ("blend", "ranked"))
    assert "generative model ranks it best, at 1, the blend drops it to 2" in blend
    assert "30" not in blend
    assert "EASE ranks it best, at 4, the blend drops it to 30, the ranker lifts it to 3" in ranked
