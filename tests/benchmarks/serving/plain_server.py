"""What a tutorial serves: FastAPI and one eager torch model, without filters, ranker or limits.

    RECSYS_BUNDLES=... RECSYS_PORT=... python -m tests.benchmarks.serving.plain_server

The bundle's sequence model scores every item for the user's history; two uvicorn workers.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel

from recsys.data.batch import Jagged, JaggedBatch
from serving.bundle.load import load_bundle

APP = "tests.benchmarks.serving.plain_server:made_app"


class PlainRequest(BaseModel):
    """A user and how many items."""

    user_id: str
    k: int = 20


def made_app() -> FastAPI:
    torch.set_num_threads(1)
    bundle = load_bundle(Path(os.environ["RECSYS_BUNDLES"]) / "current")
    model, app = bundle.sequence, FastAPI()
    assert model is not None

    @app.get("/readyz")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/v1/recommend")
    async def recommend(request: PlainRequest) -> dict[str, object]:
        row = bundle.users.row_of(request.user_id) or 0
        seen = bundle.users.history(row)
        history = torch.from_numpy(seen[-200:].copy())
        features = {"history": Jagged(history, torch.tensor([0, len(history)]))}
        times = bundle.users.events(row).times
        if times is not None:
            latest = torch.from_numpy(times[-200:].copy())
            features["history.times"] = Jagged(latest, torch.tensor([0, len(latest)]))
        with torch.inference_mode():
            scores = model.score(JaggedBatch(features))[0]
            scores[torch.from_numpy(seen.copy())] = -torch.inf
            best = scores.topk(request.k)
        ids = bundle.catalogue.item_ids
        items = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return {"items": [{"item_id": ids[row], "score": score} for row, score in items]}

    return app


if __name__ == "__main__":
    uvicorn.run(
        APP, factory=True, port=int(os.environ["RECSYS_PORT"]), workers=2, log_level="error"
    )
