"""Open a saved quantiser without knowing which kind it is."""

from __future__ import annotations

from pathlib import Path

from recsys.semantic_ids import rq_kmeans, rq_vae
from recsys.semantic_ids.rq_kmeans import FILE_NAME
from recsys.semantic_ids.tensor_file import read_description


def load_quantizer(directory: Path) -> rq_kmeans.ResidualKMeans | rq_vae.RqVae:
    """Load what a quantiser's ``save`` wrote.

    Raises:
        ValueError: It is missing, damaged or of a kind this version does not have.
    """
    kind = read_description(directory, FILE_NAME).get("kind")
    if kind == rq_kmeans.KIND:
        return rq_kmeans.ResidualKMeans.load(directory)
    if kind == rq_vae.KIND:
        return rq_vae.RqVae.load(directory)
    raise ValueError(
        f"{directory} holds a quantiser of kind {kind!r}, this version reads "
        f"{rq_kmeans.KIND!r} and {rq_vae.KIND!r}"
    )
