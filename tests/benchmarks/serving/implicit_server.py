"""What implicit's users serve: its ALS behind FastAPI, without filters, ranker or limits.

    PEER_DATA=... RECSYS_PORT=... python tests/benchmarks/serving/implicit_server.py

Runs in an environment of its own, which has implicit, fastapi and uvicorn, and imports nothing of
this project. The folder holds users.json and events.npz; two uvicorn workers, each fits the model.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import uvicorn
from fastapi import FastAPI
from implicit.als import AlternatingLeastSquares
from pydantic import BaseModel
from scipy.sparse import csr_matrix


class PlainRequest(BaseModel):
    """A user and how many items."""

    user_id: str
    k: int = 20


def made_app() -> FastAPI:
    folder = Path(os.environ["PEER_DATA"])
    row_of = {one: row for row, one in enumerate(json.loads((folder / "users.json").read_text()))}
    events = np.load(folder / "events.npz")
    taken = csr_matrix((np.ones(len(events["user"]), np.float32), (events["user"], events["item"])))
    model = AlternatingLeastSquares(factors=64, iterations=15, num_threads=1, random_state=0)
    model.fit(taken, show_progress=False)
    app = FastAPI()

    @app.get("/readyz")
    def ready() -> dict[str, str]:
        return {"status": "ready"}

    @app.post("/v1/recommend")
    async def recommend(request: PlainRequest) -> dict[str, object]:
        row = row_of[request.user_id]
        items, scores = model.recommend(row, taken[row], N=request.k)
        pairs = zip(items.tolist(), scores.tolist(), strict=True)
        return {"items": [{"item_id": str(item), "score": score} for item, score in pairs]}

    return app


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    uvicorn.run(
        "implicit_server:made_app",
        factory=True,
        app_dir=str(Path(__file__).parent),
        port=int(os.environ["RECSYS_PORT"]),
        workers=2,
        log_level="error",
    )
