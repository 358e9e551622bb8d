"""The peers by name: what fits them, where, their usual settings and what may be chosen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

from tests.benchmarks.peers.folder import Known
from tests.benchmarks.peers.ranking import Fitted

PROJECT = "project"
"""The environment of whoever runs the project."""
Range = tuple[float, float] | tuple[int, int] | list[Any]
"""Two limits, searched on a logarithmic scale, or values to choose from."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A model of another library, or one that anyone would try first."""

    function: str
    """``module:function`` of what takes Known and settings and fits."""
    environment: str = PROJECT
    usual: Mapping[str, Any] = field(default_factory=dict)
    """Settings: the library's own where nothing else is said."""
    space: Mapping[str, Range] = field(default_factory=dict)
    """What tuning may choose."""

    def fit(self, known: Known, settings: Mapping[str, Any]) -> Fitted:
        """Fit on what was known before a step."""
        module, _, name = self.function.partition(":")
        function: Callable[..., Fitted] = getattr(import_module(module), name)
        return function(known, **settings)


HERE = "tests.benchmarks.peers"
# 128 wide where RecTools has 256, so that a step takes a core minutes and not an hour. Its 3 epochs
# are for sets of a million events: fewer events need more passes for the same updates.
TRANSFORMER = {"n_factors": 128, "session_max_len": 100, "epochs": 20}
TRANSFORMER_SPACE: dict[str, Range] = {
    "epochs": (5, 60),
    "lr": (3e-4, 3e-3),
    "dropout_rate": [0.1, 0.2, 0.4],
    "session_max_len": [50, 100],
}
PEERS: dict[str, Peer] = {
    "popularity_7d": Peer(function=f"{HERE}.counting:popularity", usual={"days": 7}),
    "popularity_30d": Peer(function=f"{HERE}.counting:popularity", usual={"days": 30}),
    "ease": Peer(
        function=f"{HERE}.counting:ease", usual={"l2": 500.0}, space={"l2": (10.0, 5000.0)}
    ),
    "bm25": Peer(
        function=f"{HERE}.factors:bm25",
        environment="rectools",
        space={"K": (10, 1000), "K1": (0.1, 100.0), "B": [0.0, 0.25, 0.5, 0.75, 1.0]},
    ),
    "als": Peer(
        function=f"{HERE}.factors:als",
        environment="rectools",
        space={
            "factors": (16, 256),
            "regularization": (1e-3, 100.0),
            "alpha": (0.5, 40.0),
            "iterations": (5, 30),
        },
    ),
    "bpr": Peer(
        function=f"{HERE}.factors:bpr",
        environment="rectools",
        usual={"own_vector": True},
        space={
            "own_vector": [True, False],
            "factors": (16, 256),
            "learning_rate": (3e-3, 0.1),
            "regularization": (1e-3, 0.1),
            "iterations": (50, 400),
        },
    ),
    **{
        name: Peer(
            function=f"{HERE}.transformers:{name}",
            environment="rectools",
            usual=TRANSFORMER,
            space=TRANSFORMER_SPACE,
        )
        for name in ("sasrec", "bert4rec", "hstu")
    },
}


def named(name: str) -> Peer:
    """Find a peer; ``module:function`` is one of anybody's own, in the project's environment.

    Raises:
        ValueError: There is none of the name.
    """
    if ":" in name:
        return Peer(function=name)
    if name not in PEERS:
        raise ValueError(
            f"no peer is called {name!r}; there are {', '.join(PEERS)}, and module:function for "
            "your own"
        )
    return PEERS[name]
