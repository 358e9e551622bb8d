"""What differs between the two runs of page ``summary``."""

from pipelines.dashboard.query import Query
from pipelines.dashboard.runs.runs import changed_settings, settings_section
from pipelines.dashboard.summary import build
from pipelines.dashboard.workspaces.read import read_workspace
from tests.pipelines.dashboard.documents import lines_of, table
from tests.pipelines.dashboard.synthetic_runs import write_run


def test_bundles_of_a_real_workspace_differ_in_settings(context):
    served, before = context.stores.bundles()
    page = build(context, Query.of(runs=(before.key, served.key)))
    rows = table(page, "settings").rows
    assert rows == [["two_tower.embedding_dim", "16", "24"]]
    assert lines_of(page, "differences") == "The data are the same."
    (run,) = [one for one in context.stores.runs() if one.kind == "workspace"]
    assert changed_settings(run, served) == []


def test_data_and_what_is_not_on_record(tmp_path):
    old = read_workspace(write_run(tmp_path / "old", width=32))
    new = read_workspace(write_run(tmp_path / "new", data="e" * 64))
    bare = read_workspace(write_run(tmp_path / "bare", stages=("evaluate",), settings=""))
    said = {one.name: settings_section(old, one).blocks[0].lines for one in (old, new, bare)}
    assert said == {
        "old": ["The data are the same.", "No setting that shapes results differs."],
        "new": ["The data differ."],
        "bare": ["The data are not on record for both.", "Settings are not on record for both."],
    }
    assert changed_settings(old, new) == [["two_tower.embedding_dim", "32", "64"]]
