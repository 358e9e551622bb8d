"""The page Try on two real bundles."""

import shutil
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pipelines.dashboard.ask import loading
from pipelines.dashboard.ask.loading import loading_of
from pipelines.dashboard.ask.page import ENTRY, build, exports
from pipelines.dashboard.context import Context
from pipelines.dashboard.query import NotFoundError, Query, QueryError
from pipelines.dashboard.runs.stores import Places, Stores
from pipelines.pages.document import ItemList, Lists, Page, Table, Tiles, Words
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions
from tests.pipelines.dashboard.conftest import HOSTILE_TITLES
from tests.pipelines.dashboard.documents import block_of, blocks_of, control_of, texts


@pytest.fixture(scope="module")
def tried(workspace: Path) -> Context:
    """A dashboard with both bundles in memory."""
    made = Context(stores=Stores(Places(roots=[workspace])))
    for bundle in made.stores.bundles():
        assert loading_of(made, bundle).wait(60)
    return made


def keys(context: Context) -> tuple[str, ...]:
    return tuple(one.key for one in context.stores.bundles())


def lists_of(page: Page) -> Sequence[ItemList]:
    return [one for one in block_of(page, Lists).lists if one.title != "History"]


def ids(one: ItemList) -> list[str]:
    return [entry.item_id for entry in one.entries]


def test_lists_are_those_that_the_bundles_serve(tried: Context):
    page = build(tried, Query.of(k="8"))
    first, second = lists_of(page)
    user = str(control_of(page, "user").value)
    for shown, bundle in zip((first, second), control_of(page, "runs").value, strict=True):
        path = tried.stores.run(bundle).path
        assert path is not None
        served = Recommender.load(path).answer(Request(user_id=user, k=8))
        assert ids(shown) == [item.item_id for item in served.items]
    assert first.title.endswith("(served)")


def test_marks_and_numbers_agree_with_the_lists(tried: Context):
    path = tried.stores.run(keys(tried)[0]).path
    assert path is not None
    users = Recommender.load(path).bundle.users.user_ids
    pages = (build(tried, Query.of(k="10", user=users[row])) for row in range(1, len(users)))
    # Two bundles may give one user the same list.
    page, first, second = next(
        (page, first, second)
        for page in pages
        for first, second in [lists_of(page)]
        if ids(first) != ids(second)
    )
    ours, theirs = ids(first), ids(second)
    for entry in first.entries:
        assert (entry.mark == "gone") == (entry.item_id not in theirs)
    for place, entry in enumerate(second.entries):
        before = ours.index(entry.item_id) if entry.item_id in ours else None
        by = 0 if before is None else before - place
        expected = "new" if before is None else "moved_up" if by > 0 else "moved_down"
        assert entry.mark == ("" if before == place else expected)
        assert by == 0 or f"{'up' if by > 0 else 'down'} {abs(by)}" in entry.note
    share = len(set(ours) & set(theirs)) / 10
    tiles = {tile.label: tile.value for tile in block_of(page, Tiles).tiles}
    assert tiles["Overlap@10"] == f"{share:.0%}"
    said = " ".join(line for words in blocks_of(page.blocks, Words) for line in words.lines)
    assert f"{len(set(ours) & set(theirs))} items are in both lists" in said
    rows = block_of(page, Table, "items").rows
    assert len(rows) == len(set(ours) | set(theirs))
    assert all(row[1] is not None or row[2] is not None for row in rows)


def test_a_session_grows_by_clicks_and_shrinks_by_chips(tried: Context):
    page = build(tried, Query.of(**{"for": "session"}, k="5"))
    clicked = lists_of(page)[0].entries[0]
    assert clicked.link is not None
    query = Query.of(**clicked.link.parameters)
    grown = build(tried, query)
    chips = control_of(grown, "session")
    assert chips.value == (clicked.item_id,)
    assert chips.options[0].label == clicked.title
    assert clicked.item_id not in ids(lists_of(grown)[0])
    history = block_of(grown, Lists).lists[0]
    assert (history.title, ids(history)) == ("History", [clicked.item_id])
    # A user's click goes on from the user's own history.
    user = build(tried, Query.of(user="u1", k="5"))
    link = lists_of(user)[0].entries[0].link
    assert link is not None
    assert (link.parameters["user"], link.parameters["for"]) == ("u1", "user")


def test_items_and_texts(tried: Context):
    (item, *_) = ENTRY.suggest["items"](tried, Query.of(), "")
    similar = build(tried, Query.of(item=item.value, k="5"))
    assert item.value not in ids(lists_of(similar)[0])
    assert control_of(similar, "item").options[0].label == item.label
    assert "Choose an item" in build(tried, Query.of(**{"for": "item"})).lead
    found = build(tried, Query.of(text=item.label, k="3"))
    assert ids(lists_of(found)[0])[0] == item.value
    unknown = build(tried, Query.of(item="no such item"))
    assert all("is not in the catalogue" in one.empty for one in lists_of(unknown))
    stranger = build(tried, Query.of(user="nobody"))
    assert all("does not know this user" in one.note for one in lists_of(stranger))


def test_titles_stay_text(tried: Context):
    found = [
        option.label
        for title in ("script", "b amp")
        for option in ENTRY.suggest["items"](tried, Query.of(), title)
    ]
    assert HOSTILE_TITLES[0] in found
    page = build(tried, Query.of(text="script"))
    assert lists_of(page)[0].entries[0].title == HOSTILE_TITLES[0]
    assert texts(block_of(page, Table, "items").rows[0])[0] == HOSTILE_TITLES[0]


def test_users_are_found_by_the_beginning_of_their_id(tried: Context):
    user = str(control_of(build(tried, Query.of()), "user").value)
    found = ENTRY.suggest["users"](tried, Query.of(), user.upper())
    assert found[0].value == user
    assert all(option.value.startswith(user) for option in found)
    assert "events" in found[0].label


def test_settings_that_the_bundles_have(tried: Context):
    page = build(tried, Query.of(profile="full"))
    assert control_of(page, "profile").value == "full"
    category = control_of(page, "category").options[1].value
    limited = build(tried, Query.of(category=category, k="5"))
    first = lists_of(limited)[0]
    path = tried.stores.run(str(control_of(page, "runs").value[0])).path
    assert path is not None
    bundle = Recommender.load(path).bundle
    for item in ids(first):
        row = bundle.catalogue.row_of(item)
        assert row is not None
        assert category in bundle.catalogue.categories_of(row)


def test_both_profiles_of_a_bundle_stand_side_by_side(tried: Context):
    page = build(tried, Query.of(profile="both", k="8"))
    fast, full = lists_of(page)
    first = tried.stores.run(str(control_of(page, "runs").value[0]))
    assert fast.title.startswith(f"{first.name}, fast")
    assert full.title.startswith(f"{first.name}, full")
    assert first.path is not None
    user = str(control_of(page, "user").value)
    for shown, name in ((fast, "fast"), (full, "full")):
        options = ServingOptions(profile=name)
        served = Recommender.load(first.path, options).answer(Request(user_id=user, k=8))
        assert ids(shown) == [item.item_id for item in served.items]
    timings = block_of(page, Table, "timings")
    assert [column.label for column in timings.columns[1:]] == [
        f"{first.name}, fast",
        f"{first.name}, full",
    ]


def test_one_bundle_alone_has_no_marks(tried: Context):
    page = build(tried, Query.of(runs=keys(tried)[:1], k="5"))
    (one,) = lists_of(page)
    assert {entry.mark for entry in one.entries} <= {"", "seen"}
    assert not list(blocks_of(page.blocks, Tiles))


def test_a_run_stands_beside_what_is_served(tried: Context):
    (run,) = tried.stores.workspaces()
    served = next(one for one in tried.stores.bundles() if "served" in one.tags)
    other = next(one for one in tried.stores.bundles() if one is not served)
    for about in (run, served, other):
        page = build(tried, Query.of(run=about.key))
        assert control_of(page, "runs").value == (served.key, other.key)


def test_refused_values_say_what_is_allowed(tried: Context):
    with pytest.raises(QueryError, match="1 to 50"):
        build(tried, Query.of(k="0"))
    with pytest.raises(QueryError, match="at most 2"):
        build(tried, Query.of(runs=("a", "b", "c")))
    with pytest.raises(NotFoundError, match="no run 'a'"):
        build(tried, Query.of(runs="a"))
    with pytest.raises(QueryError, match="fast"):
        build(tried, Query.of(profile="slow"))
    with pytest.raises(QueryError, match="user_id"):
        build(tried, Query.of(user="x" * 1000))


def test_an_export_holds_a_few_users_and_nothing_to_query(tried: Context):
    file = replace(tried, exported=True)
    queries = exports(file, Query.of(run=tried.stores.workspaces()[0].key, runs=keys(tried)))
    assert len(queries) == 3
    for query in queries:
        page = build(file, query)
        (control,) = page.controls
        assert (control.kind, control.value) == ("select", query.text("user"))
        assert {query.text("user") for query in queries} == {o.value for o in control.options}
        assert all(entry.link is None for one in lists_of(page) for entry in one.entries)


def test_a_page_says_that_it_loads_and_two_never_load_at_once(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
):
    loads: list[Path] = []
    go_on = threading.Event()
    real = loading.load_and_try

    def slow(path: Path, *options: object) -> Recommender:
        loads.append(path)
        assert go_on.wait(60)
        return real(path, *options)  # type: ignore[arg-type]

    monkeypatch.setattr(loading, "load_and_try", slow)
    monkeypatch.setattr("pipelines.dashboard.ask.page.AT_ONCE", 0.0)
    context = Context(stores=Stores(Places(roots=[workspace])))
    pages = [build(context, Query.of()) for _ in range(3)]
    assert all(page.lead.startswith("Loading bundle-") for page in pages)
    assert {page.refresh_seconds for page in pages} == {1.0}
    assert ENTRY.suggest["users"](context, Query.of(), "u") == []
    go_on.set()
    for bundle in context.stores.bundles():
        assert loading_of(context, bundle).wait(60)
    page = build(context, Query.of())
    assert page.refresh_seconds is None
    assert len(loads) == 2


def test_a_bundle_that_cannot_be_loaded_is_said_and_the_other_one_shown(
    workspace: Path, tmp_path: Path
):
    shutil.copytree(workspace / "bundles", tmp_path / "bundles", symlinks=True)
    context = Context(stores=Stores(Places(roots=[tmp_path])))
    bundle = context.stores.bundles()[0]
    assert bundle.path is not None
    path = next(bundle.path.glob("catalogue/*.npy"), None) or next(bundle.path.glob("*/*.npy"))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1])
    for one in context.stores.bundles():
        loading_of(context, one).wait(60)
    page = build(context, Query.of(runs=keys(context)))
    (notice,) = page.notices
    assert bundle.name in notice
    assert "truncated or altered" in notice
    assert len(lists_of(page)) == 1


def test_without_bundles_the_page_says_what_to_do(tmp_path: Path):
    page = build(Context(stores=Stores(Places(roots=[tmp_path]))), Query.of())
    assert "recsys run" in block_of(page, Words).lines[0]
