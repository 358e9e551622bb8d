"""Time the embeddings of texts by a server of 100 ms a request, one at a time and by default.

The server answers any number of requests at once, with vectors of 384 numbers. Each turn of both
reads texts that no turn before had.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from recsys.content.config import EmbeddingEndpointConfig
from recsys.content.embedding_cache import encode_cached
from recsys.content.endpoint_encoder import EndpointEncoder
from tests.benchmarks.harness import Row, command_line, write_results
from tests.recsys.content.openai_server import Reply, Request, embeddings_reply, openai_server

DIM = 384
VECTOR = [0.05] * DIM


def slow(request: Request) -> Reply:
    time.sleep(0.1)
    return embeddings_reply([VECTOR] * len(request["input"]))


def seconds(base_url: str, texts: list[str], **options: int) -> float:
    config = EmbeddingEndpointConfig(base_url=base_url, model="m", dim=DIM, **options)
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        encode_cached(texts, EndpointEncoder(config), Path(folder))
        return time.perf_counter() - start


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--texts", type=int, default=20_000)
    number = parser.parse_args().texts
    texts = [f"soap number {place}" for place in range(number)]
    with openai_server(embed=slow) as server:
        one = seconds(server.base_url, texts, concurrency=1)
        ours = seconds(server.base_url, texts)
    name = f"{number:,} texts, 8 requests at once"
    row = Row(name=name, value=ours, unit="s", peer="one at a time", peer_value=one, min_ratio=4)
    write_results("endpoint", [row])


if __name__ == "__main__":
    main()
