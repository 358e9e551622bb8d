"""Reference of the Python interface, generated from docstrings."""

from __future__ import annotations

HEAD = """# Python

The public interface; names, arguments and errors come from the source. For everything else see the
[packages](../contributing.md#packages).

"""
OBJECTS = {
    "Fit": ["pipelines.shop.Shop", "pipelines.shop.Report"],
    "Recommend": [
        "serving.recommend.Recommender",
        "serving.schemas.Request",
        "serving.schemas.Reply",
    ],
    "Call a server": [
        "serving.client.clients.Client",
        "serving.client.clients.AsyncClient",
        "serving.client.calls",
    ],
    "Judge lists": ["recsys.evaluation.ranking", "recsys.evaluation.paired"],
    "Search vectors": ["recsys.retrieval.index.ExactIndex"],
    "Models": ["recsys.models.two_tower.TwoTower", "recsys.models.item_to_item.item_to_item_model"],
    "Train": ["recsys.training.loop.train"],
}


def python_page() -> str:
    """Write a directive for each object, which mkdocstrings fills from the source."""
    parts = [HEAD]
    for title, names in OBJECTS.items():
        parts.append(f"## {title}\n")
        parts += [f"::: {name}\n" for name in names]
    return "\n".join(parts)
