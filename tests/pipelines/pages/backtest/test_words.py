"""What a backtest says in words, by numbers that can be added up by hand."""

from pipelines.pages.backtest.figures import figures_of
from pipelines.pages.backtest.page import failures_of, slice_table, summary_table
from pipelines.pages.backtest.words import fit_seconds, lines_of, relative_to_full, words_of
from tests.pipelines.pages.backtest.document import document


def test_words_compare_policies_ages_sources_and_peers():
    policies, aged, lead, peers = words_of(document())
    assert policies == (
        "NDCG@10 of the served list, mean of 4 steps from 2026-01-01 to 2026-01-05: 0.2000 if "
        "models are retrained before every step; 0.1600 if never retrained (-20.0%, with 0% of the "
        "training time)."
    )
    assert aged == (
        "Models 30 days old reach 50% of the NDCG@10 of freshly trained ones. "
        "The loss first exceeds 10% at 20 days."
    )
    assert lead == (
        "The served list is above its best single source, EASE, by 0.0325 (95% interval ± 0.0098); "
        "on 1 of 4 steps (3) the best source of that step was above it by more than one standard "
        "error."
    )
    assert peers == (
        "Best of 1 models of other libraries (peers) on the same queries: EASE (numpy) with "
        "0.1000; the served list has 0.2000 (2.00 times)."
    )


def test_one_policy_without_peers_has_less_to_say():
    alone = document()
    alone["policies"] = {"never": "left as they are"}
    for part in ("rows", "summary"):
        alone[part] = [one for one in alone[part] if one["policy"] == "never"]
    alone["leads"] = []
    assert words_of(alone) == []
    assert [figure.key for figure in figures_of(alone)["policies"]] == ["policies"]


def test_a_peer_that_missed_steps_is_not_compared():
    made = document()
    made["summary"][-1]["num_steps"] = 3
    assert not [text for text in words_of(made) if "peers" in text]


def test_cost_leaves_out_the_step_that_all_policies_share():
    assert fit_seconds(document(), "full") == 90.0
    assert fit_seconds(document(), "never") == 0.0


def test_age_and_share_of_each_step():
    ages = relative_to_full(document(), "never")
    assert [(step, age, round(share, 3)) for step, age, share in ages] == [
        (1, 0.0, 1.0),
        (2, 10.0, 0.95),
        (3, 20.0, 0.75),
        (4, 30.0, 0.5),
    ]


def test_tables_hold_quality_and_cost_relative_to_full():
    rows = {(one["policy"], one["row"]): one for one in summary_table(document())}
    assert ("peer", "EASE (numpy)") not in rows
    assert round(rows["never", "served"]["relative"], 9) == 0.8
    assert (rows["full", "served"]["seconds"], rows["full", "served"]["cost"]) == (90.0, 1.0)
    assert rows["never", "served"]["cost"] == 0.0


def test_slices_are_means_over_queries_and_failures_are_collected():
    first, second = slice_table(document())
    assert (first["slice"], first["num_queries"]) == ("new users", 120)
    assert round(second["values"]["never"], 6) == 0.16
    assert failures_of(document()) == [("broken", [1, 2, 3, 4], "out of memory")]


def test_the_command_ends_with_a_table_and_the_words():
    made = document()
    lines = lines_of({**made, "words": words_of(made)})
    assert lines[0].split() == ["policy", "list", "NDCG@10", "Recall@10", "training,", "s"]
    assert lines[1].split() == ["full", "served", "0.2000", "0.4000", "0.0"]
    assert len({len(line) for line in lines[:4]}) == 1
    assert lines[-5:] == ["", *words_of(made)]
