"""Hot swap: a server follows ``current`` without dropping a request.

A background thread polls the link, loads and verifies its target, answers one request with it, and
then assigns one reference. A request keeps the recommender it began with. A bundle that cannot be
loaded is refused and counted, and the old one keeps serving.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from serving.bundle.adapters import identity_of, served_adapters
from serving.bundle.manifest import CURRENT, MANIFEST
from serving.log import log
from serving.recommend import Recommender
from serving.schemas import Request
from serving.settings import ServingOptions


@dataclass(frozen=True, kw_only=True)
class SwapState:
    """Swaps so far."""

    loaded_at: datetime
    num_swaps: int = 0
    num_refused: int = 0
    refused: str | None = None
    """Why the target of ``current`` is not served; None where it is."""


Identity = tuple[str, int, int, int]
"""Target of ``current`` and its manifest's inode, size and time: differs for each new one."""


class BundleWatcher:
    """Holds the recommender that serves, and replaces it when ``current`` moves."""

    def __init__(
        self,
        bundles_dir: Path,
        options: ServingOptions | None = None,
        *,
        poll_seconds: float,
        name: str = CURRENT,
    ) -> None:
        """Load ``current``, or the bundle of another name.

        Raises:
            ValueError: If there is none, or it is refused; says what to do.
        """
        self._current = bundles_dir / name
        self._poll_seconds = poll_seconds
        self._options = options
        self._wake, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._polling = threading.Lock()
        _check_there(bundles_dir, name)
        self._tried = self._identity()
        self._adapters_tried = identity_of(served_adapters(bundles_dir))
        self._recommender = _load_and_try(self._current, self._options)
        self._state = SwapState(loaded_at=datetime.now(UTC))
        log("bundle_loaded", {"bundle": self._recommender.bundle.version})

    @property
    def recommender(self) -> Recommender:
        """The one that serves now."""
        return self._recommender

    @property
    def state(self) -> SwapState:
        return self._state

    def start(self) -> None:
        """Start to follow ``current``."""
        self._stopped.clear()
        self._thread = threading.Thread(target=self._follow, name="bundle-watcher", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop following; the current one keeps serving."""
        self._stopped.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def wake(self) -> None:
        """Poll ``current`` soon, and retry a refused one."""
        self._tried = None
        self._wake.set()

    def poll(self) -> bool:
        """Poll ``current`` once and swap what is new; return whether anything was swapped."""
        with self._polling:
            identity = self._identity()
            if identity == self._tried:
                return self._poll_adapters()
            self._tried = identity
            adapters = identity_of(served_adapters(self._current.parent))
            started = time.perf_counter()
            try:
                candidate = _load_and_try(self._current, self._options)
            except Exception as error:
                # Whatever is wrong with a new bundle, the old one has to keep serving.
                self._refuse(error)
                return False
            old = self._recommender.bundle
            if candidate.bundle.digest == old.digest:
                self._state = replace(self._state, refused=None)
                return self._poll_adapters()
            self._recommender, self._adapters_tried = candidate, adapters
            self._state = SwapState(
                loaded_at=datetime.now(UTC),
                num_swaps=self._state.num_swaps + 1,
                num_refused=self._state.num_refused,
            )
        seconds = round(time.perf_counter() - started, 3)
        versions = {"before": old.version, "bundle": candidate.bundle.version}
        log("bundle_swapped", {**versions, "seconds": seconds})
        return True

    def _poll_adapters(self) -> bool:
        """Load the adapters that domains' ``current`` point at, if new, over the served bundle."""
        served = served_adapters(self._current.parent)
        identity = identity_of(served)
        if identity == self._adapters_tried:
            return False
        self._adapters_tried = identity
        try:
            self._recommender = self._recommender.with_adapters(served)
        except Exception as error:
            # Adapters that do not fit are left out; this is for the unforeseen.
            self._refuse(error)
            return False
        adapters = self._recommender.adapters
        fields = {"adapters": dict(adapters.versions), "refused": dict(adapters.refused)}
        log("adapters_swapped", fields, level=logging.ERROR if adapters.refused else logging.INFO)
        self._state = replace(self._state, num_swaps=self._state.num_swaps + 1)
        return True

    def _refuse(self, error: Exception) -> None:
        self._state = replace(
            self._state, num_refused=self._state.num_refused + 1, refused=str(error)
        )
        log(
            "bundle_refused",
            {"serving": self._recommender.bundle.version, "reason": str(error)},
            level=logging.ERROR,
            failed=not isinstance(error, ValueError),
        )

    def _follow(self) -> None:
        while not self._stopped.is_set():
            self._wake.wait(self._poll_seconds)
            self._wake.clear()
            if not self._stopped.is_set():
                self.poll()

    def _identity(self) -> Identity | None:
        try:
            directory = self._current.resolve(strict=True)
            manifest = (directory / MANIFEST).stat()
        except OSError:
            # A link to nothing is tried once, so that the refusal is counted and visible.
            return (str(self._current.resolve()), 0, 0, 0)
        return (str(directory), manifest.st_ino, manifest.st_size, manifest.st_mtime_ns)


@contextmanager
def _permitted() -> Iterator[None]:
    """Say which file this user may not read, and what to do.

    Raises:
        ValueError: In place of a PermissionError.
    """
    try:
        yield
    except PermissionError as error:
        raise ValueError(
            f"{error.filename} may not be read by the user that serves (uid {os.geteuid()}); run "
            "the server as the owner of the bundles, or let everyone read them: "
            "chmod -R a+rX <folder of the bundles>"
        ) from error


def _raise(error: OSError) -> None:
    raise error


def _check_there(bundles_dir: Path, name: str) -> None:
    with _permitted():
        there = (bundles_dir / name).exists()
    if there:
        return
    found = sorted(path.name for path in bundles_dir.glob("bundle-*"))
    raise ValueError(
        f"there is no bundle to serve: {bundles_dir / name} does not exist"
        + (f" (found {', '.join(found[-3:])}, none published)" if found else "")
        + ". Release one with `recsys run --config <your>.toml` (or `make demo`), or name another "
        "folder with --bundles or RECSYS_BUNDLES"
    )


def _load_and_try(current: Path, options: ServingOptions | None) -> Recommender:
    """Load a bundle and answer one request, so that the first real one finds everything warm."""
    with _permitted():
        # A folder that may not be listed would look empty, its files missing.
        for _ in os.walk(current.resolve(), onerror=_raise):
            pass
        recommender = Recommender.load(current, options)
    bundle = recommender.bundle
    owner = bundle.users.user_ids[1] if bundle.users.num_user_rows > 1 else None
    recommender.answer(Request(user_id=owner, k=1))
    return recommender
