"""Are our off-policy estimates those of obp 0.4.1, on a synthetic log and on Open Bandit.

obp runs in an environment of its own, `python -m tests.benchmarks.peers.environments obp`. What it
finds is kept in tests/recsys/evaluation/off_policy/obp_numbers.json, which a test compares with.
"""

import json
import os
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from tests.benchmarks.harness import ROOT, Row, command_line, write_results
from tests.benchmarks.peers.run import ENVIRONMENTS
from tests.recsys.evaluation.off_policy.obp_inputs import (
    CAMPAIGNS,
    POLICIES,
    SWITCH_AT,
    open_bandit_actions,
    synthetic_actions,
    synthetic_slates,
    values_of_actions,
    values_of_slates,
)

VALUES = Path(__file__).with_name("obp_values.py")
NUMBERS = ROOT / "tests" / "recsys" / "evaluation" / "off_policy" / "obp_numbers.json"


def of_obp(python: Path, given: dict[str, np.ndarray]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "given.npz"
        np.savez(path, **given, switch_at=np.array(SWITCH_AT))
        command = [str(python), "-W", "ignore", str(VALUES), str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--python", type=Path, default=ENVIRONMENTS / "obp" / "bin" / "python")
    parser.add_argument("--mirror", default=os.environ.get("RECSYS_DATA_MIRROR"))
    options = parser.parse_args()
    numbers, rows = {}, []
    inputs = {
        "synthetic actions": (synthetic_actions(), values_of_actions),
        "synthetic slates": (synthetic_slates(), values_of_slates),
    }
    if options.mirror:
        folder = Path(options.mirror) / "open-bandit"
        for policy in POLICIES:
            for campaign in CAMPAIGNS:
                given = open_bandit_actions(folder, policy, campaign)
                inputs[f"open-bandit {policy} {campaign}"] = (given, values_of_actions)
    for name, (given, ours) in inputs.items():
        numbers[name] = of_obp(options.python, given)
        found = ours(given)
        assert found.keys() <= numbers[name].keys()
        rows += [
            Row(
                name=f"{name}: {estimator}",
                value=found[estimator],
                peer=f"obp {value:.12g}, {abs(found[estimator] - value):.1e} apart",
                goal="<= 1e-9 apart",
                met=abs(found[estimator] - value) <= 1e-9,
            )
            for estimator, value in numbers[name].items()
            if estimator in found
        ]
    lines = [f'"{name}": {json.dumps(values)}' for name, values in numbers.items()]
    NUMBERS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    furthest = max(float(row.peer.split(", ")[1].split()[0]) for row in rows if row.peer)
    columns = list(dict.fromkeys(name for values in numbers.values() for name in values))
    table = ["| log | " + " | ".join(columns) + " |", "| --- |" + " --- |" * len(columns)]
    for name, values in numbers.items():
        cells = [f"{values[column]:.6f}" if column in values else "" for column in columns]
        table.append(f"| {name} | " + " | ".join(cells) + " |")
    write_results(
        "off_policy_agreement",
        rows,
        in_page=False,
        notes="\n".join(table) + f"\n\n{len(rows)} values; ours and obp's are at most "
        f"{furthest:.1e} apart. Open Bandit: each policy is "
        "valued on the other one's impressions (10,000 a campaign), by its shares of items in "
        "each position; switch DR at a weight of 3.",
    )


if __name__ == "__main__":
    main()
