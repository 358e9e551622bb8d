import json
from dataclasses import replace

from pipelines.auto.beside import Gain
from pipelines.auto.plan import PlanPart
from pipelines.auto.trials import Trial
from pipelines.auto.worth import named_parts
from pipelines.ranking.artefact import Choice, describe_choices
from tests.pipelines.auto.test_rounds import automatic, planned, round_of, sources

__all__ = ["sources"]


def test_every_named_part_has_its_number_or_its_reason(sources):
    run, plan = automatic(sources, []), planned(round_of("a", 1.0), finished=1)
    gain = {"difference": 0.01, "standard_error": 0.002, "queries": 50}
    blend = {"served": "learned", "metric": "ndcg@10", "validation": {"learned": 0.21}}
    recalls = {
        "before": {"new items": 0.01, "all": 0.04},
        "after": {"new items": 0.04, "all": 0.05},
    }
    blend["new_items"] = {"odds": 2.0, "tried": 2.0, "set": False, **recalls}
    ids = {"method": "none", "reason": "no item has content"}
    for path, document in {
        "fit_blend/given/blends.json": {
            "profiles": {"fast": blend | {"gains": {"sequence": gain, "content_similarity": gain}}}
        },
        "build_semantic_ids/semantic_ids_report.json": ids,
    }.items():
        file = run.base.workspace / path
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps(document))
    late = PlanPart("two-tower", "", "90 s are needed, 60 s are left", 90.0)
    plan.plan = replace(plan.plan, left_out=(late,))
    experts = Choice("experts", "8 experts", False, -0.0002, 0.0004)._asdict()
    parts = describe_choices({"metric": "ndcg@10", "choices": [experts]})
    loss = Gain("ndcg@10", -0.001, 0.002, 0.2)
    lost = Trial(name="ranker", what="", seconds=1.0, gain=loss, parts=parts)
    short = Trial(
        name="longer training",
        what="",
        seconds=1.0,
        begun=False,
        reason="no time left: needs 140 s",
    )
    plan.trials, plan.stopped = [lost.table(), short.table()], "no time is left for longer training"
    assert Trial.of_table(json.loads(json.dumps(lost.table()))) == lost
    assert dict(named_parts(plan, run.round_config(plan.plan.rounds[0]))) == {
        "semantic IDs": "left out: no item has content",
        "generation": (
            "left out: it changed the blends of three logs by -0.3% to +0.2%; "
            "generative_training.enabled = true adds it"
        ),
        "ranker": "tried: -0.5% +- 1.0% ndcg@10 on validation",
        "experts": "tried: -0.0002 +- 0.0004 ndcg@10 on validation; 8 experts",
        "impressions": (
            "left out: no list names what was shown and not chosen (filters.shown_types)"
        ),
        "adapters": "left out: no time is left for longer training",
        "sequence model": "trained: +5.0% +- 1.0% ndcg@10 on validation",
        "longer training": "left out: no time left: needs 140 s",
        "two-tower": "left out: 90 s are needed, 60 s are left",
        "content embeddings": "read: +5.0% +- 1.0% ndcg@10 on validation",
        "items without events": (
            "odds 2, fitted on validation; recall@10 of new items 0.0100 to 0.0400, "
            "all 0.0400 to 0.0500"
        ),
    }
