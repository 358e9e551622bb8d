"""Run a published table again, beside the published numbers; fail if it differs.

    python -m tests.benchmarks.reproduction                      the cards there are
    python -m tests.benchmarks.reproduction beauty --dry-run     what it would do, and how long
    python -m tests.benchmarks.reproduction beauty --seeds 1 --rows item_to_item --device cpu
    python -m tests.benchmarks.reproduction beauty --prepare arrays/beauty

What is finished is not run again, and each seed has a folder of its own. Ends with 3 if a number is
out of its band.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.reproduction.card import card_names, read_card
from tests.benchmarks.reproduction.run import arrays_of, plan_of, reproduce
from tests.benchmarks.reproduction.train import summary_line


def parsed_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tests.benchmarks.reproduction", description=__doc__)
    parser.add_argument("card", nargs="?", help="beauty, sports, ...; or a card's file")
    parser.add_argument("--seeds", type=int, help="how many; the card's own without")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda")
    parser.add_argument("--rows", default="", help="only these, with commas")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and stop")
    parser.add_argument("--prepare", type=Path, help="write the arrays there, and stop")
    parser.add_argument("--folder", type=Path, help="runs/reproduce/<card> without")
    parser.add_argument("--validation-only", action="store_true", help="never look at test")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = parsed_arguments(arguments)
    if options.card is None:
        for name in card_names():
            print(f"{name:<22} {read_card(name).title}")
        return 0
    name = Path(options.card).stem
    plan = plan_of(
        name,
        read_card(options.card),
        options.folder or Path("runs/reproduce") / name,
        num_seeds=options.seeds,
        rows=[row.strip() for row in options.rows.split(",") if row.strip()],
        device=options.device,
        validation_only=options.validation_only,
    )
    print("\n".join(plan.lines()))
    if options.dry_run:
        return 0
    if options.prepare is not None:
        arrays_of(plan, show_progress=True).save(options.prepare)
        print(f"arrays in {options.prepare}")
        return 0
    page, wrong = reproduce(
        plan, show_progress=True, finished=lambda result: print(summary_line(result), end="")
    )
    print(page.read_text(encoding="utf-8"))
    for one in wrong:
        print(f"out of band: {one.text()}", file=sys.stderr)
    return 3 if wrong else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ValueError as error:
        sys.exit(f"reproduction: {error}")
