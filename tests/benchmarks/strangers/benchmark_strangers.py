"""Run the package on strangers' logs, untuned and in a budget, beside what a team would try first.

Each log is written as CSV under names of its own. Every user's last event is kept back, or, of logs
with times, all that comes after a moment; `recsys data init` and `recsys run` do the rest, and the
released bundle is asked. Peers are fitted on the same events with one setting chosen on each user's
last training event (peers.py, outside_peers.py), once: their numbers are kept. What was measured on
this commit in this budget is not run again, so the command that was stopped may be given again.

    RECSYS_DATA_MIRROR=... python -m tests.benchmarks.strangers.benchmark_strangers --sets music
    ... --after last                      # one of the two: last, moment
    ... --peers --outside PYTHON          # fit peers, with another Python for implicit and RecTools
    ... --held-out                        # the sets that are run once, at the end

Writes results/strangers/strangers.{json,md}; sets that are not named keep their numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from tests.benchmarks.harness import (
    LEDGER,
    RESULTS,
    ROOT,
    Row,
    command_line,
    current_commit,
    write_results,
)
from tests.benchmarks.strangers.measures import recall_and_ndcg, without
from tests.benchmarks.strangers.peers import (
    ONLY_REPEATS,
    RECENT,
    SETTINGS,
    measure,
    own_peer,
    recent_lists,
)
from tests.benchmarks.strangers.sets import (
    SETS,
    WORLDS,
    Parted,
    StrangersSet,
    before_moment,
    named_files,
    without_last,
)
from tests.benchmarks.strangers.worlds import best_possible

NUMBERS = RESULTS / "strangers" / "measured.json"
OUTSIDE = ("ALS", "BPR", "SASRec")
ASKED = 20
GOAL = 1.2
PARTS = {"last": ("", without_last), "moment": (", after a moment", before_moment)}
"""What is kept back: words after a set's name, and how it is parted."""
KINDS = {"new": "", "next": ", old items too"}
POLL_S = 0.25
BUDGETS = {"last": "10m", "moment": "5m"}
TIMES = ("first_bundle_s", "last_bundle_s", "total_s", "peak_gib")
QUIET = 0.1
"""Cores that others may use while a run has quiet ones."""
ASK = """
import json, sys
from pathlib import Path
from serving.recommend import Recommender
work = Path(sys.argv[1])
users = json.loads((work / "users.json").read_text())
recommender = Recommender.load(next(work.glob("runs/*/bundles/current")))
frame = recommender.recommend(users=users, k=int(sys.argv[2])).sort("user_id", "rank")
lists = {user: [] for user in users}
for user, item in frame.select("user_id", "item_id").iter_rows():
    lists[user].append(item)
(work / "lists.json").write_text(json.dumps(lists))
"""


def parsed_arguments() -> argparse.Namespace:
    parser = command_line(__doc__)
    parser.add_argument("--sets", nargs="*", choices=SETS, help="not all of them")
    parser.add_argument("--after", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--held-out", action="store_true", help="the sets that are run once")
    parser.add_argument("--budget", help="instead of 10m (last) and 5m (moment)")
    parser.add_argument("--set", dest="settings", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--peers", nargs="*", help="fit peers instead of running; all, or these")
    parser.add_argument("--outside", help="Python with implicit and rectools, for their peers")
    parser.add_argument("--work", type=Path, help="keep the files of the runs in this folder")
    return parser.parse_args()


def targets_of(one: StrangersSet, log: Parted) -> dict[str, dict[str, str]]:
    """Give the kept-back items by kind: new ones, and where items repeat all of them."""
    new = {"new": log.new_targets()}
    return new | {"next": log.target} if one.repeats else new


def fit_peers(
    one: StrangersSet, log: Parted, names: Sequence[str], outside: str | None
) -> dict[str, dict[str, list[float]]]:
    """Fit and measure peers; those of other libraries in their own Python."""
    targets = targets_of(one, log)
    found = {}
    for name in names:
        wanted = {kind: targets[kind] for kind in targets if name != ONLY_REPEATS or kind == "next"}
        if name in SETTINGS and wanted:
            found[name] = measure(own_peer(name), SETTINGS[name], log.history, wanted)
    for name in RECENT.keys() & set(names):
        lists = recent_lists(log, RECENT[name])
        found[name] = {"new": [round(x, 4) for x in recall_and_ndcg(lists, log.target)]}
    theirs = [name for name in names if name in OUTSIDE]
    if theirs and outside is not None:
        with tempfile.TemporaryDirectory() as folder:
            events, out = Path(folder) / "events.json", Path(folder) / "out.json"
            events.write_text(json.dumps({"history": log.history, "targets": targets}))
            module = "tests.benchmarks.strangers.outside_peers"
            command = [outside, "-m", module, str(events), str(out), "--peers", *theirs]
            subprocess.run(command, cwd=ROOT, check=True)
            found |= json.loads(out.read_text())
    return found


def recsys(*arguments: str) -> list[str]:
    """Command line of the package's own program."""
    return [sys.executable, "-m", "pipelines.cli.main", *arguments]


def environment() -> dict[str, str]:
    """This one, with the checkout's packages first."""
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def run_package(
    tables: Mapping[str, pl.DataFrame], work: Path, budget: str | None, settings: Sequence[str]
) -> dict[str, Any]:
    """Write a stranger's files, run the two commands, and time the first bundle and the end.

    A run that fails is judged by what it released before, with ``failed``, its exit code.
    """
    for name, table in tables.items():
        table.write_csv(work / name)
    begin, others = time.monotonic(), busy_seconds() - own_seconds()
    # Texts that an earlier run encoded would make this one look faster.
    quiet = {"cwd": work, "env": environment() | {"RECSYS_DATA_CACHE": str(work / "cache")}}
    subprocess.run(recsys("data", "init", *tables), check=True, stdout=subprocess.DEVNULL, **quiet)
    command = recsys("run", next(work.glob("*.toml")).name)
    command += [*(["--budget", budget] if budget else []), *(f"--set={one}" for one in settings)]
    first, last, served, peak = None, None, "", 0
    with (work / "run.log").open("w") as output:
        run = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **quiet)
        while run.poll() is None:
            time.sleep(POLL_S)
            peak = max(peak, peak_kib(run.pid))
            for link in work.glob("runs/*/bundles/current"):
                if str(link.readlink()) != served:
                    served, last = str(link.readlink()), time.monotonic() - begin
                    first = last if first is None else first
    total = time.monotonic() - begin
    if run.returncode:
        print((work / "run.log").read_text()[-2_000:], f"\nended with {run.returncode} in {work}")
    first, last = (total if one is None else one for one in (first, last))
    failed = {"failed": run.returncode} if run.returncode else {}
    seconds = zip(TIMES, (first, last, total), strict=False)
    of_run = {name: round(value, 1) for name, value in seconds}
    others = (busy_seconds() - own_seconds() - others) / total
    return of_run | {"peak_gib": round(peak / 2**20, 2), "others": round(others, 2)} | failed


def busy_seconds() -> float:
    """Read the seconds that all cores worked, for anybody, since the machine started."""
    user, nice, system, _, _, *rest = Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
    return sum(map(int, (user, nice, system, *rest))) / os.sysconf("SC_CLK_TCK")


def own_seconds() -> float:
    """Return the processor seconds of this process and of those that it waited for."""
    used = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used)


def peak_kib(process: int) -> int:
    """Read the most memory that a process held since its last stage began, in KiB."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 0


def ask_bundle(work: Path, users: Sequence[str]) -> dict[str, list[str]]:
    """Ask the released bundle for each user's list."""
    (work / "users.json").write_text(json.dumps(list(users)))
    command = [sys.executable, "-c", ASK, str(work), str(ASKED)]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True)
    lists: dict[str, list[str]] = json.loads((work / "lists.json").read_text())
    return lists


def judged(
    one: StrangersSet, log: Parted, lists: Mapping[str, Sequence[str]]
) -> dict[str, list[float]]:
    """Measure lists as peers' are: without the history for new items, as they are for all."""
    shown = {"new": without(lists, log.history), "next": lists}
    return {
        kind: [round(value, 4) for value in recall_and_ndcg(shown[kind], target)]
        for kind, target in targets_of(one, log).items()
    }


def note_look(one: StrangersSet, name: str, model: str) -> None:
    """Note a look at a test split, of sets whose users' last events are the literature's test."""
    if not one.held_out or one.source == "drawn":
        return
    entry = {
        "date": datetime.now(UTC).date().isoformat(),
        "data_set": one.source,
        "tie_order": "given",
        "model": model,
        "seed": 0,
        "config": name,
        "why": f"stranger's set {name}, users cut out of the registry's set",
    }
    with LEDGER.open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def peers_of(found: Mapping[str, Any], kind: str) -> dict[str, list[float]]:
    """Take the peers that were measured on a kind of target."""
    return {peer: of[kind] for peer, of in found.get("peers", {}).items() if kind in of}


def rows_of(numbers: Mapping[str, Any]) -> list[Row]:
    """One row a set and kind of target: our N@10 beside the best peer's."""
    rows = []
    for name, found in numbers.items():
        measured = found.get("ours", {}).get("measured", {})
        for kind in KINDS:
            peers = peers_of(found, kind)
            if kind not in measured or not peers:
                continue
            value = measured[kind][1]
            best = max(peers, key=lambda peer: peers[peer][1])
            ratio = value / max(peers[best][1], 1e-9)
            rows.append(
                Row(
                    name=f"{name}{KINDS[kind]}: ndcg@10",
                    value=value,
                    peer=f"{best} {peers[best][1]:.4f}",
                    ratio=round(ratio, 3),
                    goal=f">= {GOAL}x the best peer",
                    met=ratio >= GOAL,
                )
            )
    return rows


def table_of(numbers: Mapping[str, Any]) -> str:
    """Lay out sets by line, R@10 / N@10 of all by column."""
    peers = [*SETTINGS, *RECENT, *OUTSIDE]
    head = [
        "set",
        "events",
        "users asked",
        "what it has",
        "first bundle, s",
        "last, s",
        "all, s",
        "peak, GiB",
    ]
    head += ["ours", *peers, "ratio", "commit, cores"]
    lines = ["| " + " | ".join(head) + " |", "| --- " * len(head) + "|"]
    for name, found in numbers.items():
        ours = found.get("ours", {})
        for kind, label in KINDS.items():
            others = peers_of(found, kind)
            if not others:
                continue
            mine = ours.get("measured", {}).get(kind)
            best = max(value[1] for value in others.values())
            cells = [
                name + label,
                f"{found['events']:,}",
                f"{found['users']:,}" if "users" in found else "",
                SETS[name.partition(",")[0]].has,
                *(f"{ours[key]:g}" if key in ours else "" for key in TIMES),
                pair(mine),
                *(pair(others.get(peer)) for peer in peers),
                "" if mine is None else f"{mine[1] / max(best, 1e-9):.2f}",
                f"{ours.get('commit', '')[:8]} {cores(ours)}",
            ]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cores(ours: Mapping[str, Any]) -> str:
    """Describe whether a run had the cores for itself; empty where that was not measured."""
    others = ours.get("others")
    if others is None:
        return ""
    return "quiet" if others < QUIET else f"others used {others:.2f}"


def pair(value: Sequence[float] | None) -> str:
    """Write R@10 / N@10 without the leading zeros."""
    if value is None:
        return ""
    return " / ".join(f"{part:.4f}".removeprefix("0") for part in value)


def write_numbers(name: str, measured: Mapping[str, Any]) -> None:
    """Keep what was measured of a set, one line a set and peers beside ours, and write the page."""
    NUMBERS.parent.mkdir(parents=True, exist_ok=True)
    numbers = json.loads(NUMBERS.read_text()) if NUMBERS.exists() else {}
    found = numbers.setdefault(name, {})
    peers = {**found.get("peers", {}), **measured.get("peers", {})}
    found |= {**measured, "peers": peers}
    names = [set_name + words for set_name in SETS for words, _ in PARTS.values()]
    ordered = {name: numbers[name] for name in names if name in numbers}
    lines = [f"{json.dumps(name)}: {json.dumps(one)}" for name, one in ordered.items()]
    NUMBERS.write_text("{" + ",\n".join(lines) + "}\n")
    possible = ", ".join(f"{one} {best_possible(world):.4f}" for one, world in WORLDS.items())
    notes = (
        'R@10 / N@10 of each user\'s last event or, in lines with "after a moment", of the first '
        "new item after 90% of the events (users with events before it are asked). "
        "The history is left out of every list; in lines with "
        '"old items too" it is where validation says so. The ratio is of N@10, ours to the best '
        "peer's. Held-out sets are of users on whose events nothing was developed; "
        "films-1m-held-out, which is whole, has all users, of whom no last event was seen before. "
        "EASE and BM25 choose of two settings, item-to-item (cosine) of the last event or the last "
        "five, ALS and BPR (implicit 0.7.3) of 32 and 128 "
        "factors, SASRec (RecTools 0.19, width 128) of numbers of passes up to 30, on ratings-25k "
        "80; an empty cell was not measured. Cores are quiet if others used less than "
        f"{QUIET} of one. Lists by a drawn world's own probabilities, old items "
        f"too, which no model exceeds on average, have N@10 {possible}.\n\n" + table_of(ordered)
    )
    write_results("strangers", rows_of(ordered), notes=notes, in_page=False)


def main() -> None:
    options = parsed_arguments()
    names = options.sets or [name for name, one in SETS.items() if one.held_out == options.held_out]
    for name in names:
        try:
            log = SETS[name].make()
        except FileNotFoundError as error:
            print(f"{name} is left out: {error}")
            continue
        for kind in options.after:
            words, part = PARTS[kind]
            if kind == "last" or "time" in log.events.columns:
                budget = options.budget or BUDGETS[kind]
                measure_set(name, words, part(log.events), log.items, options, budget)


def measure_set(
    name: str,
    words: str,
    log: Parted,
    items: pl.DataFrame | None,
    options: argparse.Namespace,
    budget: str,
) -> None:
    """Fit the peers of a set that have no numbers, run the package on it and ask its bundle."""
    one, events = SETS[name], {"events": log.given.height, "users": len(log.target)}
    known = json.loads(NUMBERS.read_text()).get(name + words, {}) if NUMBERS.exists() else {}
    found = known.get("peers", {}) if options.peers is None else {}
    usual = [*SETTINGS, *(OUTSIDE if options.outside else []), *(RECENT if words else [])]
    if not one.repeats:
        usual.remove(ONLY_REPEATS)
    if wanted := [peer for peer in options.peers or usual if peer not in found]:
        peers = fit_peers(one, log, wanted, options.outside)
        note_look(one, name, ", ".join(wanted))
        write_numbers(name + words, events | {"peers": peers})
    if options.peers is not None:
        return
    run_with = {"commit": current_commit(), "budget": budget, "settings": options.settings}
    if run_with.items() <= known.get("ours", {}).items():
        print(f"{name}{words}: measured on this commit")
        return
    work = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=options.work))
    ours = run_package(named_files(log.given, items, one.names), work, budget, options.settings)
    served = any(work.glob("runs/*/bundles/current"))
    lists = ask_bundle(work, list(log.target)) if served else {}
    ours["measured"] = judged(one, log, lists)
    note_look(one, name, "what recsys run releases")
    write_numbers(name + words, events | {"ours": ours | run_with})


if __name__ == "__main__":
    main()
