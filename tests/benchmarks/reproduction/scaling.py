"""What size and data give: gather the rungs of a ladder, fit the law, draw it.

python -m tests.benchmarks.reproduction beauty --prepare ARRAYS
python -m tests.benchmarks.reproduction.ladder ARRAYS --out RUNGS
python -m tests.benchmarks.reproduction.scaling RUNGS --out FOLDER
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import vl_convert

from tests.benchmarks.reproduction.power_law import PowerLaw, fit_power_law

PRINTED_FONT = "DejaVu Sans, Arial, sans-serif"
MEASURES = {"loss": "cross entropy, nats", "ndcg@10": "1 - NDCG@10"}
"""What is fitted; the law is of what falls, so a metric goes in as 1 minus itself."""
PLOT = "scaling.svg"


@dataclass(frozen=True, kw_only=True)
class ScalePoint:
    """One run of a scaling study."""

    measure: str
    """Panel of the chart."""
    num_events: int
    series: str
    """Line within the panel."""
    value: float
    fitted: float


def scaling_svg(points: Sequence[ScalePoint]) -> str:
    """Draw runs as dots and the fitted law as lines, one panel a measure, as a file of its own.

    A file carries no page whose colours it could take, so these are fixed, on white.
    """
    x = {"field": "num_events", "type": "quantitative", "title": "training events"}
    x |= {"scale": {"type": "log", "nice": False, "padding": 8}, "axis": {"format": "~s"}}
    y = {"type": "quantitative", "title": None}
    color = {"field": "series", "type": "nominal", "title": None, "sort": None}
    layers = [
        {
            "mark": {"type": "line", "strokeWidth": 1.5, "opacity": 0.8},
            "encoding": {"y": {**y, "field": "fitted"}},
        },
        {
            "mark": {"type": "point", "filled": True, "size": 45},
            "encoding": {"y": {**y, "field": "value", "scale": {"zero": False}}},
        },
    ]
    spec = {
        "data": {"values": [asdict(point) for point in points]},
        "facet": {
            "column": {
                "field": "measure",
                "type": "nominal",
                "title": None,
                "header": {"labelFontSize": 13},
            }
        },
        "spec": {
            "width": 380,
            "height": 300,
            "encoding": {"x": x, "color": {**color, "scale": {"scheme": "viridis"}}},
            "layer": layers,
        },
        "resolve": {"scale": {"y": "independent"}},
        "config": {"font": PRINTED_FONT, "background": "white"},
    }
    svg: str = vl_convert.vegalite_to_svg(spec)
    return svg


def read_rungs(folder: Path) -> list[dict[str, Any]]:
    """Read every rung's result.

    Raises:
        ValueError: None is there, or they are of different data or recipes.
    """
    rungs = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(folder.glob("w*-d*-s*.json"))
    ]
    if not rungs:
        raise ValueError(
            f"no rungs in {folder}; run python -m tests.benchmarks.reproduction.ladder"
        )
    for what in ("data_digest", "recipe"):
        found = sorted({rung[what] for rung in rungs})
        if len(found) > 1:
            raise ValueError(
                f"the rungs in {folder} are of different {what.replace('_', ' ')}: "
                f"{', '.join(found)}; take a folder for each"
            )
    return rungs


def value_of(rung: Mapping[str, Any], measure: str) -> float:
    """Take what falls as a model gets better."""
    value = float(rung[measure])
    return value if measure == "loss" else 1 - value


def fit_law(rungs: Sequence[Mapping[str, Any]], measure: str) -> PowerLaw:
    """Fit a measure over encoder weights and training events."""
    sizes = torch.tensor([float(rung["num_weights"]) for rung in rungs])
    amounts = torch.tensor([float(rung["num_events"]) for rung in rungs])
    return fit_power_law(sizes, amounts, torch.tensor([value_of(r, measure) for r in rungs]))


def points_of(rungs: Sequence[Mapping[str, Any]], measure: str, law: PowerLaw) -> list[ScalePoint]:
    """Lay out each rung with what the law says of it."""
    sizes = torch.tensor([float(rung["num_weights"]) for rung in rungs])
    amounts = torch.tensor([float(rung["num_events"]) for rung in rungs])
    predicted = law.predict(sizes, amounts).tolist()
    return [
        ScalePoint(
            measure=MEASURES[measure],
            num_events=rung["num_events"],
            series=f"width {rung['width']}, depth {rung['depth']}",
            value=value_of(rung, measure),
            fitted=fitted,
        )
        for rung, fitted in zip(rungs, predicted, strict=True)
    ]


def write_study(folder: Path, out: Path) -> dict[str, PowerLaw]:
    """Write scaling.json, .md and .svg from the rungs in a folder; return the laws."""
    rungs = read_rungs(folder)
    laws = {measure: fit_law(rungs, measure) for measure in MEASURES}
    out.mkdir(parents=True, exist_ok=True)
    document = {
        "data_set": rungs[0]["data_set"],
        "data_digest": rungs[0]["data_digest"],
        "recipe": rungs[0]["recipe"],
        "device": sorted({rung["device"] for rung in rungs}),
        "laws": {measure: asdict(law) for measure, law in laws.items()},
    }
    lines = ",\n".join(json.dumps(rung) for rung in rungs)
    text = f'{json.dumps(document)[:-1]}, "rungs": [\n{lines}\n]}}\n'
    (out / "scaling.json").write_text(text)
    (out / "scaling.md").write_text(page_of(rungs, laws))
    by_size = sorted(rungs, key=lambda rung: (rung["width"], rung["depth"]))
    points = [point for measure in MEASURES for point in points_of(by_size, measure, laws[measure])]
    (out / PLOT).write_text(scaling_svg(points))
    return laws


def law_text(measure: str, law: PowerLaw) -> str:
    """Write a law as a formula with how well it fits."""
    return (
        f"{MEASURES[measure]} = {law.floor:.4g} + {law.size_factor:.4g} N^-{law.size_power:.3g} + "
        f"{law.data_factor:.4g} D^-{law.data_power:.3g}; {law.num_runs} runs, "
        f"{law.explained:.1%} of the variance of its logarithm, typical error "
        f"{law.log_error:.2%}"
    )


def page_of(rungs: Sequence[Mapping[str, Any]], laws: Mapping[str, PowerLaw]) -> str:
    """Write the study as Markdown."""
    first = rungs[0]
    lines = [
        "# Scaling study",
        "",
        f"Sequence model on {first['data_set']} ({first['data_digest']}), recipe "
        f"{first['recipe']}, validation, full catalogue; {first['device']}. N is the number of "
        "weights outside the tables, D the number of training events.",
        "",
        *(f"- {law_text(measure, law)}" for measure, law in laws.items()),
        "",
        f"![Loss and ranking against training events, one line a size]({PLOT})",
        "",
        "| width | depth | share of users | N | D | cross entropy | NDCG@10 | R@10 | seconds |",
        "| --- " * 9 + "|",
    ]
    by_size = sorted(rungs, key=lambda rung: (rung["width"], rung["depth"], rung["share"]))
    lines += [
        f"| {rung['width']} | {rung['depth']} | {rung['share']:g} | {rung['num_weights']:,} | "
        f"{rung['num_events']:,} | {rung['loss']:.4f} | {rung['ndcg@10']:.4f} | "
        f"{rung['recall@10']:.4f} | {rung['seconds']:.0f} |"
        for rung in by_size
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rungs", type=Path, help="what the ladder wrote")
    parser.add_argument("--out", type=Path, required=True, help="folder of the page")
    options = parser.parse_args()
    for measure, law in write_study(options.rungs, options.out).items():
        print(law_text(measure, law))


if __name__ == "__main__":
    main()
