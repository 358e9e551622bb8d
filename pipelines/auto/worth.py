"""What each named part of the platform brought on a log, or the reason that it was left out."""

from __future__ import annotations

from pipelines.auto.beside import Gain
from pipelines.auto.plan import CONTENT, SEQUENCE
from pipelines.auto.rounds import Planned
from pipelines.auto.trials import Trial
from pipelines.candidates.blends import FILE, describe_new_items
from pipelines.config.run import RunConfig
from pipelines.engine.artifacts import read_json
from pipelines.ranking.artefact import EXPERTS, IMPRESSIONS, describe_choices
from pipelines.ranking.artefact import FILE as DECISION
from pipelines.semantic_ids.store import REPORT
from recsys.fitting.queries import GIVEN
from recsys.models import names

IDS, NEW_ITEMS = "semantic IDs", "items without events"
PARTS = {
    IDS: "",
    "generation": "generative",
    "ranker": "",
    EXPERTS: "",
    IMPRESSIONS: "",
    "adapters": "",
    SEQUENCE: "sequence",
    "two-tower": "two_tower",
    CONTENT: names.CONTENT.name,
    NEW_ITEMS: "",
}
"""Named parts, each with its source in the blend if it has one."""
REASONS = {
    IDS: "built with the sequence model, for generation, which alone reads them",
    "generation": (
        "it changed the blends of three logs by -0.3% to +0.2%; "
        "generative_training.enabled = true adds it"
    ),
    CONTENT: "no text is read",
    **dict.fromkeys((EXPERTS, IMPRESSIONS), "no ranker was trained, whose part they are"),
}


def named_parts(planned: Planned, config: RunConfig) -> list[tuple[str, str]]:
    """Describe each named part, and the further rounds that add no part of their own."""
    gains, trials = measured_gains(config), [one["name"] for one in planned.trials]
    rows = dict.fromkeys([*PARTS, *trials])
    return [(name, gains.get(PARTS.get(name) or name) or left_out(name, planned)) for name in rows]


def measured_gains(config: RunConfig) -> dict[str, str]:
    """Describe the gain of each part that is trained, by source or name."""
    gains: dict[str, str] = {}
    path = config.workspace / "fit_blend" / GIVEN / FILE
    for document in read_json(path)["profiles"].values() if path.exists() else ():
        gains[NEW_ITEMS] = describe_new_items(document)
        for name, gain in document.get("gains", {}).items():
            before = document["validation"][document["served"]] - gain["difference"]
            found = Gain(document["metric"], gain["difference"], gain["standard_error"], before)
            how = "read" if name == names.CONTENT.name else "trained"
            gains.setdefault(name, f"{how}: {found.words()}")
    path = config.workspace / "train_ranker" / GIVEN / DECISION
    decision = read_json(path) if path.exists() else {}
    gains |= describe_choices(decision)
    if decision.get("served"):
        before = decision["validation"]["blend"]
        found = Gain(decision["metric"], decision["ahead"], decision["standard_error"], before)
        gains["ranker"] = f"trained: {found.words()}"
    report = read_json(config.workspace / "build_semantic_ids" / REPORT)
    if report["method"] != "none":
        gains[IDS] = "built; generation alone reads them"
    elif config.semantic_ids.method != "none":
        gains[IDS] = f"left out: {report['reason']}"
    return gains


def left_out(name: str, planned: Planned) -> str:
    """Return what a trial of a part came to, or else what the plan said."""
    for one in reversed(planned.trials):
        if one["name"] == name:
            return Trial.of_table(one).words()
        if name in one["parts"]:
            return str(one["parts"][name])
    reasons = REASONS | {part.name: part.why for part in reversed(planned.plan.left_out)}
    return f"left out: {reasons.get(name, planned.stopped)}"
