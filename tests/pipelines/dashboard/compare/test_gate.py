"""What the gate decided is what the Summary says first."""

from pathlib import Path

import pytest

from pipelines.dashboard.compare.gate import gate_answer
from pipelines.dashboard.workspaces.stores import Places, Stores
from pipelines.publishing.decisions import Decision, write_decision
from tests.pipelines.dashboard.synthetic_runs import write_bundle, write_run


@pytest.mark.parametrize("outcome", ["released", "refused"])
def test_the_answer_on_a_pair_is_the_gates(tmp_path: Path, outcome: str) -> None:
    write_run(tmp_path / "shop")
    bundles = tmp_path / "shop" / "bundles"
    for version in ("v1", "v2", "v3"):
        write_bundle(bundles, version)
    decision = Decision(
        outcome=outcome,
        challenger="v2",
        champion="v1",
        challenger_digest=None,
        words=["ndcg@10 +0.0100 (+0.0020 to +0.0180)"],
    )
    write_decision(bundles, decision, None)
    runs = {run.name: run for run in Stores(Places(roots=[tmp_path])).bundles()}
    assert gate_answer(runs["v1"], runs["v2"]) == (
        f"The release gate decided on this pair: B was {outcome}: "
        "ndcg@10 +0.0100 (+0.0020 to +0.0180)"
    )
    # It has decided nothing on v2 in place of v3, nor on v3.
    assert gate_answer(runs["v3"], runs["v2"]) == ""
    assert gate_answer(runs["v1"], runs["v3"]) == ""


def test_the_gates_answer_has_its_interval_margin_and_the_slices_that_lost(tmp_path: Path) -> None:
    write_run(tmp_path / "shop")
    bundles = tmp_path / "shop" / "bundles"
    for version in ("v1", "v2"):
        write_bundle(bundles, version)
    whole = "ndcg@50 against the champion on the same queries"
    checks = (
        (whole, -0.02, True, "better: +3.1% (+1.0% to +5.2%)"),
        ("ndcg@50 of domain books against the champion", -0.1, False, "-20.0% is shown"),
        ("size", 2.0, True, "of the champion's"),
    )
    decision = Decision(
        outcome="refused",
        challenger="v2",
        champion="v1+3",
        challenger_digest=None,
        verdicts=[
            {"name": name, "value": 0.0, "bound": bound, "passed": passed, "reason": reason}
            for name, bound, passed, reason in checks
        ],
    )
    write_decision(bundles, decision, None)
    runs = {run.name: run for run in Stores(Places(roots=[tmp_path])).bundles()}
    assert gate_answer(runs["v1"], runs["v2"]) == (
        f"The release gate decided on this pair: B was refused: {whole}: better: +3.1% (+1.0% to "
        "+5.2%) (margin -2.0%); ndcg@50 of domain books against the champion: -20.0% is shown "
        "(margin -10.0%)"
    )
