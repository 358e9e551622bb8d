"""What each named part of the platform brought on a log, or the reason that it was left out."""

from __future__ import annotations

from pipelines.auto.beside import Gain
from pipelines.auto.plan import SEQUENCE
from pipelines.auto.rounds import Planned
from pipelines.auto.trials import Trial
from pipelines.candidates.blends import FILE, describe_new_items
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import read_json
from pipelines.ranking.artefact import EXPERTS, IMPRESSIONS, describe_choices
from pipelines.ranking.artefact import FILE as DECISION
from pipelines.semantic_ids.store import REPORT
from recsys.fitting.queries import GIVEN

NEW_ITEMS = "items without events"
PARTS = {
    "semantic IDs": "",
    "generation": "generative",
    "ranker": "",
    EXPERTS: "",
    IMPRESSIONS: "",
    "adapters": "",
    SEQUENCE: "sequence",
    "two-tower": "two_tower",
    NEW_ITEMS: "",
}
"""Named parts, each with its source in the blend if it has one."""


def named_parts(planned: Planned, config: RunConfig) -> list[tuple[str, str]]:
    """Describe each named part, and the further rounds that add no part of their own."""
    gains, others = measured_gains(config), [one["name"] for one in planned.trials]
    names = dict.fromkeys([*PARTS, *others])
    return [(name, gains.get(PARTS.get(name) or name) or left_out(name, planned)) for name in names]


def measured_gains(config: RunConfig) -> dict[str, str]:
    """Describe the gain of each part that is trained, by source or name."""
    gains: dict[str, str] = {}
    path = config.workspace / "fit_blend" / GIVEN / FILE
    for document in read_json(path)["profiles"].values() if path.exists() else ():
        gains[NEW_ITEMS] = describe_new_items(document)
        for name, gain in document.get("gains", {}).items():
            before = document["validation"][document["served"]] - gain["difference"]
            found = Gain(document["metric"], gain["difference"], gain["standard_error"], before)
            gains.setdefault(name, f"trained: {found.words()}")
    path = config.workspace / "train_ranker" / GIVEN / DECISION
    decision = read_json(path) if path.exists() else {}
    gains |= describe_choices(decision)
    if decision.get("served"):
        before = decision["validation"]["blend"]
        found = Gain(decision["metric"], decision["ahead"], decision["standard_error"], before)
        gains["ranker"] = f"trained: {found.words()}"
    report = read_json(config.workspace / "build_semantic_ids" / REPORT)
    if report["method"] != "none":
        gains["semantic IDs"] = "built; generation alone reads them, so its line is their gain"
    elif config.semantic_ids.method != "none":
        gains["semantic IDs"] = f"left out: {report['reason']}"
    return gains


def left_out(name: str, planned: Planned) -> str:
    """Return what a trial of a part came to, or else what the plan said."""
    for one in reversed(planned.trials):
        if one["name"] == name:
            return Trial.of_table(one).words()
        if name in one["parts"]:
            return str(one["parts"][name])
    if name in (EXPERTS, IMPRESSIONS):
        return "left out: no ranker was trained, whose part they are"
    for part in planned.plan.left_out:
        if part.name == name:
            return f"left out: {part.why}"
    return f"left out: {planned.stopped}"
