"""A handmade backtest whose numbers can be added up by hand."""

from typing import Any

SERVED = {"full": [0.20, 0.20, 0.20, 0.20], "never": [0.20, 0.19, 0.15, 0.10]}
EASE = {"full": [0.15, 0.15, 0.22, 0.15], "never": [0.15, 0.14, 0.12, 0.08]}


def row(policy: str, name: str, step: int, value: float, seconds: float) -> dict[str, Any]:
    return {
        "policy": policy,
        "row": name,
        "step": step,
        "metrics": {"ndcg@10": value, "recall@10": 2 * value},
        "standard_errors": {"ndcg@10": 0.01, "recall@10": 0.02},
        "fit_seconds": seconds,
        "rank_seconds": 1.0,
        "model_age_days": 10.0 * (step - 1) if policy == "never" else 0.0,
    }


def summary(policy: str, name: str, values: list[float], seconds: float) -> dict[str, Any]:
    mean = sum(values) / len(values)
    metrics = {"ndcg@10": mean, "recall@10": 2 * mean}
    around = {key: [value - 0.01, value + 0.01] for key, value in metrics.items()}
    return {
        "policy": policy,
        "row": name,
        "metrics": metrics,
        "intervals": around,
        "time_intervals": around,
        "fit_seconds": seconds,
        "rank_seconds": 4.0,
    }


def document(model: str = "ease") -> dict[str, Any]:
    """Four steps of two policies and a model."""
    rows = []
    for place in range(4):
        for policy, values in SERVED.items():
            rows.append(row(policy, "served", place + 1, values[place], 0.0))
            seconds = 30.0 if policy == "full" else 0.0
            rows.append(row(policy, model, place + 1, EASE[policy][place], seconds))
    return {
        "data_set": "a shop",
        "data_digest": "0123",
        "config_digest": "4567",
        "seed": 0,
        "device": "CPU",
        "protocol": "Models are fitted on what was before.",
        "metric": "ndcg@10",
        "steps": [
            {
                "number": number,
                "begin": f"2026-01-{number:02d} 00:00",
                "end": f"2026-01-{number + 1:02d} 00:00",
                "num_known_events": 1_000 * number,
                "num_events": 100,
                "num_queries": 100,
                "num_users": 50,
                "num_new_users": 5,
                "num_new_items": 2,
            }
            for number in (1, 2, 3, 4)
        ],
        "policies": {"full": "fitted from scratch", "never": "left as they are"},
        "rows": rows,
        "summary": [
            *(summary(policy, "served", values, 0.0) for policy, values in SERVED.items()),
            *(summary(policy, model, values, 120.0) for policy, values in EASE.items()),
        ],
    }
