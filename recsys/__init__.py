"""Tensors and maths: models, layers, retrieval, training and evaluation.

``from recsys import Shop`` gives the door to the whole platform (pipelines/shop.py).
"""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name == "Shop":
        return import_module("pipelines.shop").Shop
    raise AttributeError(f"module 'recsys' has no attribute {name!r}")
