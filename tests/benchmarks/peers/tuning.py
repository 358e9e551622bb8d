"""Choose a peer's settings with Optuna on the warm-up step, where ours are chosen too."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from tests.benchmarks.peers.folder import WARM_UP, Backtest
from tests.benchmarks.peers.named import Peer
from tests.benchmarks.peers.ranking import filled, ndcg
from tests.benchmarks.peers.run import most_popular

MAX_TRIALS = 60
SEED = 0


def chosen(backtest: Backtest, row: str, peer: Peer, seconds: float) -> Mapping[str, Any]:
    """Take the settings that were chosen for a row, or choose them.

    The usual settings are the first trial. Choosing ends with the trial that runs when the seconds
    are over.
    """
    path = backtest.choice(row)
    if path.exists():
        document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        settings: dict[str, Any] = document["settings"]
        return settings
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    queries = backtest.queries(WARM_UP)
    known = backtest.known_before(queries.begin)
    popular = most_popular(backtest, queries.begin)

    def measure(settings: Mapping[str, Any]) -> float:
        lists = peer.fit(known, settings).lists(queries)
        return ndcg(filled(lists, queries, popular), queries)

    def objective(trial: Any) -> float:
        picked = {name: suggested(trial, name, limits) for name, limits in peer.space.items()}
        return measure({**peer.usual, **picked})

    begin = time.perf_counter()
    usual = measure(peer.usual)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=SEED))
    study.optimize(
        objective,
        n_trials=MAX_TRIALS,
        timeout=max(1.0, seconds - (time.perf_counter() - begin)),
        catch=(Exception,),
    )
    best: Mapping[str, Any] = peer.usual
    finished = [trial for trial in study.trials if trial.value is not None]
    if finished and study.best_value > usual:
        best = {**peer.usual, **study.best_params}
    path.parent.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {
        "settings": best,
        "ndcg@10": max([usual, *(trial.value for trial in finished)]),
        "usual_ndcg@10": usual,
        "num_trials": 1 + len(finished),
        "seconds": round(time.perf_counter() - begin, 1),
    }
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{row}: {json.dumps(found)}", flush=True)
    return best


def suggested(trial: Any, name: str, limits: Any) -> Any:
    """Let Optuna pick a value."""
    if isinstance(limits, list):
        return trial.suggest_categorical(name, limits)
    low, high = limits
    if isinstance(low, int):
        return trial.suggest_int(name, low, high, log=True)
    return trial.suggest_float(name, low, high, log=True)
