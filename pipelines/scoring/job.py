"""The job of batch scoring: its request, its keys, and the folder of its lists.

    OUT/
        manifest.json               the job, and once all is done its parts with their digests
        lists/part-00000.parquet    lists of the first users, in their order; and so on
        failed/part-00000.jsonl     users of that part who got no list, and why; most have none

A job is settled by its first run, the time of its requests included. Later runs make the parts
that are missing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from pipelines.engine.artifacts import MANIFEST, digest_of_json, read_json, write_json
from serving.bundle.load import Bundle
from serving.bundle.manifest import Profile
from serving.query import settle_moment
from serving.recommend import Recommender
from serving.surfaces import find_surfaces

LISTS, FAILED = "lists", "failed"
ROWS_PER_PART = 200_000
"""Rows of a part at most: what a worker holds in memory, and what a kill loses."""
FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """Passed from process to process as JSON."""

    bundle: str
    """Path of the bundle, or of the link to it."""
    out: str
    surface: str = "home"
    """One that takes users (of kind ``home``) or items (``related``)."""
    config: str | None = None
    """File of surfaces, rules and experiments, as a server reads it."""
    k: int = 20
    profile: Profile = "fast"
    filter: Mapping[str, Any] = field(default_factory=dict)
    unix_time: int | None = None
    """Time of every request; None takes what the folder's manifest says, else what the API takes
    for a request without one when the job begins."""
    active_since: int | None = None
    """Only users with an event at or after this unix second."""
    keys_are: Literal["user_id", "item_id"] | None = None
    """Kind of the chosen keys; refused if the surface takes the other."""
    keys_name: str = "all"
    """Description of the keys in the manifest."""
    workers: int = 1
    """Processes that work at once."""
    max_failed_share: float = 0.01
    """With more failed lists the job is not complete."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Settings that shape the lists; equal jobs have equal lists to the last bit."""

    bundle: str
    bundle_digest: str
    adapters: Mapping[str, str]
    version: str
    configuration: str
    surface: str
    key: str
    """``user_id`` or ``item_id``: what a list is made for."""
    k: int
    profile: Profile
    filter: Mapping[str, Any]
    unix_time: int
    keys: str
    """Which users (or items): ``all``, a file's name, or those active since a time."""
    num_keys: int
    keys_digest: str
    keys_per_part: int
    format: int = FORMAT

    @cached_property
    def digest(self) -> str:
        return digest_of_json(asdict(self))

    @property
    def num_parts(self) -> int:
        return -(-self.num_keys // self.keys_per_part)

    def list_keys(self, part: int, keys: Sequence[str]) -> Sequence[str]:
        """The keys of one part."""
        return keys[part * self.keys_per_part : (part + 1) * self.keys_per_part]

    def seed(self, key: str) -> int:
        """Seed of the exploration of a list, the same in every run."""
        return int(hashlib.sha256(f"{self.digest} {key}".encode()).hexdigest()[:16], 16)

    def request(self, key: str) -> dict[str, Any]:
        """The request for one user, or for one item."""
        context = {"unix_time": self.unix_time}
        fields = {"surface": self.surface, self.key: key, "k": self.k}
        return {**fields, "filter": self.filter, "context": context}


KEYS = {"home": "user_id", "related": "item_id"}
"""Key of the lists by the kind of their surface."""


def find_key(surface: str, recommender: Recommender) -> str:
    """Return ``user_id`` or ``item_id``, the key of a surface's lists."""
    bundle, named = recommender.bundle, recommender.configuration.surfaces
    surfaces = find_surfaces(bundle.exclude_history, named)
    usable = [name for name, one in surfaces.items() if one.kind in KEYS]
    if surface not in usable:
        what = "needs what only a request knows" if surface in surfaces else "is not known"
        raise ValueError(
            f"surface {surface!r} {what}; lists for many are of surface {', '.join(usable)}"
        )
    return KEYS[surfaces[surface].kind]


def list_keys(
    request: ScoreRequest, key: str, bundle: Bundle, named: Sequence[str] | None = None
) -> list[str]:
    """List whom to make lists for, each once: the named ones, or all that the bundle has."""
    users = bundle.users
    if request.keys_are not in (None, key):
        options = "--items" if key == "item_id" else "--users or --active-since"
        raise ValueError(f"surface {request.surface!r} takes {key}s: choose them by {options}")
    if named is not None:
        keys = list(dict.fromkeys(named))
    elif key == "item_id":
        keys = list(bundle.catalogue.item_ids)[1:]
    elif request.active_since is not None:
        if users.times is None:
            raise ValueError(
                f"bundle {bundle.version} has no event times, so no user is known to be active "
                "since a time; leave out --active-since, or name users with --users"
            )
        recent = np.concatenate([[0], np.cumsum(users.times >= request.active_since)])
        active = recent[users.offsets[1:]] > recent[users.offsets[:-1]]
        keys = [users.user_ids[row] for row in np.flatnonzero(active).tolist() if row]
    else:
        keys = list(users.user_ids)[1:]
    if not keys:
        advice = "name a file with at least one id"
        if request.active_since is not None:
            advice = "no user of the bundle was active since then, choose an earlier time"
        raise ValueError(f"there are no users to make lists for ({request.keys_name}); {advice}")
    return keys


def plan(request: ScoreRequest, recommender: Recommender, keys: Sequence[str], version: str) -> Job:
    """Settle a job; what its folder says of the time and the size of parts stays."""
    bundle, out = recommender.bundle, Path(request.out)
    found = read_manifest(out)
    earlier = found["job"] if found else {}
    unix_time = earlier.get("unix_time") if request.unix_time is None else request.unix_time
    if unix_time is None:
        unix_time = settle_moment(None, int(time.time()), bundle.context_features, bundle.users, [])
    size = min(ROWS_PER_PART // request.k, max(250, -(-len(keys) // 16)))
    job = Job(
        bundle=bundle.version,
        bundle_digest=bundle.digest,
        adapters=dict(recommender.adapters.versions),
        version=version,
        configuration=recommender.configuration.version,
        surface=request.surface,
        key=find_key(request.surface, recommender),
        k=request.k,
        profile=recommender.profile,
        filter=request.filter,
        unix_time=unix_time,
        keys=request.keys_name,
        num_keys=len(keys),
        keys_digest=hashlib.sha256("\0".join(keys).encode()).hexdigest(),
        keys_per_part=max(1, size),
    )
    if found:
        check_same(out, earlier, asdict(job))
    return job


def check_same(out: Path, earlier: Mapping[str, Any], job: Mapping[str, Any]) -> None:
    """Refuse to mix lists of two jobs."""
    names = [name for name in job if earlier.get(name) != job[name]]
    if names:
        differences = "; ".join(
            f"{name} is {earlier.get(name)!r} there, {job[name]!r} here" for name in names
        )
        raise ValueError(
            f"{out} holds lists of another job: {differences}. Name another folder with --out, or "
            "delete this one"
        )


def read_manifest(out: Path) -> dict[str, Any] | None:
    """Read what a folder holds; None where nothing was begun."""
    path = out / MANIFEST
    if not path.exists():
        if out.is_dir() and any(not one.name.startswith(".") for one in out.iterdir()):
            raise ValueError(f"{out} is not empty and holds no lists; name another with --out")
        return None
    try:
        found: dict[str, Any] = read_json(path)
        if found["job"]["format"] != FORMAT:
            raise ValueError(f"format {found['job']['format']}, this version reads {FORMAT}")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} does not describe lists of this version ({error}); name another folder with "
            "--out, or delete this one"
        ) from error
    return found


def write_manifest(out: Path, job: Job, outcome: Mapping[str, Any]) -> None:
    """Write the folder's manifest; equal jobs write equal bytes."""
    document = {"job": asdict(job), "job_digest": job.digest, **outcome}
    write_json(out / MANIFEST, document)
