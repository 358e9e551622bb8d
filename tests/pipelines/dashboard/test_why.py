"""Page ``why``: outcomes with known answers; a user of a real run."""

import pytest

from pipelines.dashboard.query import Query, QueryError
from pipelines.dashboard.why import ENTRY, build, read_contest
from pipelines.pages.document import Lists, Window
from tests.pipelines.dashboard.documents import block_of, dashboard, table, words
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
    shown = read_contest(planted, pair)
    first, second = (shown.queries[rank].is_between(1, 10) for rank in ("rank0", "rank1"))
    both, neither = (first & second).sum(), (~(first | second)).sum()
    lost, won = (first & ~second).sum(), (~first & second).sum()
    assert both + neither + lost + won == 2_000
    assert build(planted, pair).lead == (
        f"Of 2,000 held-out items, {lost:,} are in the first 10 of sequence model alone, {won:,} "
        f"in those of EASE alone, {both:,} in both and {neither:,} in neither."
    )


def test_the_table_is_ordered_filtered_and_searched(planted, pair):
    rows = ENTRY.rows["queries"]
    worst = [row[5] for row in rows(planted, pair, Window(length=5, order_by=5)).rows]
    assert worst == sorted(worst)
    assert worst[0] < 0
    best = rows(planted, pair, Window(length=2000, order_by=3)).rows
    assert [row[3] or 101 for row in best] == sorted(row[3] or 101 for row in best)
    lost = rows(planted, Query({**pair.values, "outcome": ("first",)}), Window(length=3))
    assert {row[6] for row in lost.rows} == {"only sequence model"}
    one = rows(planted, pair, Window(search="user-77"))
    assert {cell[0].text for cell in one.rows} <= {f"user-77{rest}" for rest in ("", *range(10))}
    titled = rows(planted, pair, Window(search="TITLE</b> 7 ", length=500))
    assert titled.found == sum("</b> 7 " in row[1] for row in titled.rows) > 0


def test_a_user_is_shown_with_history_lists_and_ranks_of_all_sources(context):
    user = ENTRY.rows["queries"](context, Query(), Window(length=1)).rows[0][0].text
    page = build(context, Query.of(user=user))
    past, *lists = block_of(page, Lists).lists
    assert past.entries
    assert len(lists) == 2
    seen = {one.item_id for one in past.entries}
    for one in (one for part in lists for one in part.entries):
        assert one.mark != "hit" or one.title in words(page)
        assert one.mark == "seen" or one.item_id not in seen
    ranks = table(page, "ranks").rows
    assert {"EASE", "popularity"} <= {row[1] for row in ranks}
    assert [row[2] or 1e9 for row in ranks] == sorted(row[2] or 1e9 for row in ranks)


def test_unknown_users_are_said_and_bad_parameters_refused(context):
    assert "no user 'nobody'" in " ".join(build(context, Query.of(user="nobody")).notices)
    for values, message in (({"k": "0"}, "1 to 20"), ({"outcome": "x"}, "outcome is 'x'")):
        with pytest.raises(QueryError, match=message):
            build(context, Query.of(**values))
