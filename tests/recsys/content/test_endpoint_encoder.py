import math

import numpy as np
import pytest

from recsys.content.config import EmbeddingEndpointConfig
from recsys.content.embedding_cache import encode_cached
from recsys.content.encoder import HashEncoder
from recsys.content.endpoint import Endpoint
from recsys.content.endpoint_encoder import EndpointEncoder
from recsys.content.prompt import EndpointError
from tests.recsys.content.openai_server import Reply, Request, embeddings_reply, openai_server


def encoder_of(
    base_url: str, dim: int = 16, batch_size: int = 4, **more: object
) -> EndpointEncoder:
    fields: dict[str, object] = {"timeout_seconds": 30.0, "max_retries": 1, **more}
    config = EmbeddingEndpointConfig(
        base_url=base_url,
        model="m",
        dim=dim,
        batch_size=batch_size,
        **fields,  # type: ignore[arg-type]
    )
    return EndpointEncoder(config, Endpoint(config, sleep=lambda _: None))


def hashed(request: Request) -> Reply:
    return embeddings_reply(HashEncoder(16).encode(request["input"]).tolist())


def test_a_server_that_dies_half_way_loses_nothing_that_was_paid(tmp_path):
    texts = [f"soap number {i:02d}" for i in range(20)]
    served: list[str] = []

    def dying(request: Request) -> Reply:
        if len(served) >= 12:
            return Reply({"error": {"message": "down"}}, 500)
        served.extend(request["input"])
        return hashed(request)

    with openai_server(embed=dying) as server:
        encoder = encoder_of(server.base_url)
        with pytest.raises(EndpointError, match=r"status 500.*what is done is kept"):
            encode_cached(texts, encoder, tmp_path)
        paid = list(served)
        served.clear()
        vectors = encode_cached(texts, encoder, tmp_path)
    assert len(paid) == 12
    assert sorted(paid + served) == texts
    assert np.allclose(vectors, HashEncoder(16).encode(texts), atol=1e-3)


@pytest.mark.parametrize(
    ("vector", "message"),
    [
        ([1.0] * 15, "width 15 for text 1 of the batch, dim = 16 is configured"),
        ([1.0] * 17, "width 17"),
        ([], "width 0"),
        ("AAAA", "width str"),
        (None, "width NoneType"),
        ([math.nan] * 16, "zeros, NaN or infinity for 1 of 2"),
        ([1e39] * 16, "zeros, NaN or infinity"),
        ([0.0] * 16, "zeros, NaN or infinity"),
        (["x"] * 16, "hold no numbers"),
        ([[1.0]] * 16, "hold no numbers"),
        ([None] * 16, "hold no numbers|NaN"),
    ],
)
def test_a_bad_vector_is_refused_and_nothing_of_its_batch_is_kept(tmp_path, vector, message):
    data = [{"index": 0, "embedding": [1.0] * 16}, {"index": 1, "embedding": vector}]
    with openai_server(embed=lambda _: Reply({"data": data})) as server:
        encoder = encoder_of(server.base_url)
        with pytest.raises(EndpointError, match=message):
            encode_cached(["a", "b"], encoder, tmp_path)
    assert list(tmp_path.rglob("shard-*")) == []
