"""Bundles in memory: each is verified and loaded once, in the background, as a server loads it."""

from __future__ import annotations

import logging
import threading
import time
from functools import partial
from pathlib import Path

import numpy as np

from pipelines.dashboard.context import Context
from pipelines.dashboard.runs.run import Run
from serving.bundle.load import Bundle
from serving.bundle.manifest import MANIFEST, Profile
from serving.loading import load_and_try
from serving.recommend import Recommender
from serving.settings import ServingOptions
from serving.web.lookup import UserIndex, category_sizes

log = logging.getLogger("recsys.dashboard")
AT_ONCE = 0.5
"""Seconds that a page waits for a bundle before it says that it loads."""
TYPICAL = (0.5, 0.1, 0.9)
"""Quantiles of the lengths of histories at which users are named."""
ONCE_MORE = 60.0
"""Seconds behind a failure after which a bundle is tried once more."""


class Loading:
    """A bundle that is loaded, or being loaded, or cannot be."""

    def __init__(self, path: Path) -> None:
        """Begin to load."""
        self.path = path
        self.error = ""
        """Why it cannot be loaded, in words."""
        self.typical: tuple[str, ...] = ()
        """A few users, for a reader who knows none."""
        self.categories: list[str] = []
        """The largest ones, by name."""
        self._profiles: dict[Profile, Recommender] = {}
        self._users: UserIndex | None = None
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self.began, self.error = time.monotonic(), ""
        self._ended = threading.Event()
        threading.Thread(target=self._load, daemon=True, name=f"load {self.path.name}").start()

    def _load(self) -> None:
        try:
            made = load_and_try(self.path, ServingOptions(profile="fast"))
            full = Recommender(made.bundle, ServingOptions(profile="full"), adapters=made.adapters)
            # What is searched for is the same in both, and is indexed before anyone types.
            full.titles = made.titles
            self._users = UserIndex(made.bundle.users.user_ids)
            self.typical = typical_users(made.bundle)
            self.categories = [one.name for one in category_sizes(made.bundle)]
            self._profiles = {"fast": made, full.profile: full if full.profile == "full" else made}
        except Exception as error:
            # Whatever is wrong with a bundle, the page says it and shows the other one.
            log.warning("bundle %s cannot be loaded", self.path, exc_info=error)
            self.error = str(error) or type(error).__name__
        finally:
            self.seconds = time.monotonic() - self.began
            self._ended.set()

    def wait(self, seconds: float | None) -> bool:
        """Wait until it is loaded, or cannot be; says whether that is so."""
        with self._lock:
            if self.error and time.monotonic() - self.began > ONCE_MORE:
                self._begin()
        return self._ended.wait(seconds)

    @property
    def profiles(self) -> tuple[Profile, ...]:
        """Those that it can be served by."""
        return tuple(self._profiles)

    def recommender(self, profile: Profile) -> Recommender:
        """Return what answers by a profile, by ``fast`` where the bundle has no other."""
        return self._profiles.get(profile, self._profiles["fast"])

    @property
    def users(self) -> UserIndex:
        """The ids of its users."""
        assert self._users is not None
        return self._users


def loading_of(context: Context, bundle: Run) -> Loading:
    """Return a bundle's state; the first call begins to load it, two never load it twice."""
    assert bundle.path is not None
    path = bundle.path.resolve()
    return context.tables.get(("bundle", path), (path / MANIFEST,), partial(Loading, path))


def typical_users(bundle: Bundle) -> tuple[str, ...]:
    """Name users with a middling, a short and a long history."""
    lengths = np.diff(np.asarray(bundle.users.offsets))
    rows = np.flatnonzero(lengths > 0)
    rows = rows[rows > 0]
    if not len(rows):
        return ()
    ordered = rows[np.argsort(lengths[rows], kind="stable")]
    found = ordered[(np.array(TYPICAL) * (len(ordered) - 1)).astype(int)]
    return tuple(bundle.users.user_ids[int(row)] for row in dict.fromkeys(found.tolist()))
