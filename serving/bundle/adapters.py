"""Domain adapters next to the bundles: registered with their base's digest, loaded while serving.

    adapters/domain-<name>/adapter-<version>/
        adapter_config.json, adapter_model.safetensors     as PEFT, recsys/layers/lora/file.py
        adapter.json       domain, base, verdicts, digests of both files; written last
    adapters/domain-<name>/current     link to the one that is served; without it none is

A domain has one adapter, of a retriever. It fits only the weights it was trained on, by digest. An
adapter of another base is refused and reported with both digests; the base then serves its domain,
as it serves an unknown one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import recsys.models.names as names
from recsys.data.durable import digest_of_file, new_directory, replace_link
from recsys.layers.lora.file import CONFIG, WEIGHTS, load_adapter, save_adapter
from recsys.layers.lora.linear import LoraAdapter, digest_of_weights
from recsys.models.adapted import AdaptedRetriever, copy_layers
from recsys.models.sequence.model import SequenceModel
from recsys.models.two_tower import TwoTower
from serving.bundle.load import Bundle
from serving.bundle.manifest import CURRENT, FileEntry, Sha256, Verdict, make_read_only
from serving.bundle.published import ADAPTER_MANIFEST, ADAPTERS, permitted, served_adapters

MAX_DOMAIN = 80
"""Characters of a domain's name, which becomes part of a folder's."""
BASES = (names.SEQUENCE.name, names.TWO_TOWER.name)
"""Models that can have adapters, in the order in which one is chosen."""
BaseName = Annotated[str, Field(pattern=f"^({'|'.join(BASES)})$")]
Model = TwoTower | SequenceModel


class AdapterManifest(BaseModel):
    """A registered adapter, with the harm gate's verdicts."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    schema_version: Literal[1] = 1
    version: Annotated[str, Field(pattern="^[0-9a-f]{12}$")]
    domain: Annotated[str, Field(min_length=1, max_length=MAX_DOMAIN)]
    base: BaseName
    base_digest: Sha256
    """Digest of the base's weights (recsys.layers.lora.linear.digest_of_weights)."""
    base_version: str
    """Bundle whose model the base is."""
    num_parameters: int
    share: float
    """Parameters, as a share of the base's."""
    metrics: dict[str, dict[str, float]] = {}
    """On held-out events of the domain, of base and adapter."""
    verdicts: list[Verdict] = []
    files: dict[str, FileEntry]


def domain_directory(bundles_dir: Path, domain: str) -> Path:
    """Return the folder of a domain's adapters."""
    if not 1 <= len(domain) <= MAX_DOMAIN:
        raise ValueError(
            f"a domain's name has 1 to {MAX_DOMAIN} characters, got {len(domain)}: {domain[:90]!r}"
        )
    return bundles_dir / ADAPTERS / f"domain-{quote(domain, safe='')}"


def write_adapter(
    bundles_dir: Path,
    adapter: LoraAdapter,
    *,
    domain: str,
    base: BaseName,
    base_version: str,
    metrics: Mapping[str, Mapping[str, float]] | None = None,
    verdicts: Sequence[Verdict] = (),
) -> Path:
    """Register an adapter atomically; equal adapters have equal versions.

    Returns:
        Its directory; ``publish_adapter`` serves it.
    """
    # A hash of its function: the bytes of safetensors' header may differ.
    parts = (digest_of_weights(adapter), adapter.base_digest, str(adapter.config.scale))
    version = hashlib.sha256(" ".join(parts).encode()).hexdigest()[:12]
    final = domain_directory(bundles_dir, domain) / f"adapter-{version}"
    if not final.exists():
        with new_directory(final) as directory:
            save_adapter(adapter, directory, domain=domain)
            manifest = AdapterManifest(
                version=version,
                domain=domain,
                base=base,
                base_digest=adapter.base_digest,
                base_version=base_version,
                num_parameters=adapter.num_parameters,
                share=adapter.share,
                metrics={name: dict(values) for name, values in (metrics or {}).items()},
                verdicts=list(verdicts),
                files={name: FileEntry.of(directory / name) for name in (CONFIG, WEIGHTS)},
            )
            text = json.dumps(manifest.model_dump(mode="json"), indent=2, sort_keys=True) + "\n"
            (directory / ADAPTER_MANIFEST).write_text(text, encoding="utf-8")
            make_read_only(directory)
    return final


def publish_adapter(directory: Path) -> None:
    """Serve an adapter for its domain, in one rename."""
    read_registered(directory)
    replace_link(directory.parent / CURRENT, directory.name)


def withdraw_adapter(bundles_dir: Path, domain: str) -> None:
    """Serve a domain by the base again; its adapters stay registered."""
    link = domain_directory(bundles_dir, domain) / CURRENT
    if not link.is_symlink():
        raise ValueError(f"no adapter is served for domain {domain!r}; {link} does not exist")
    link.unlink()


def read_registered(directory: Path) -> AdapterManifest:
    """Read and verify a registered adapter's description and files."""
    path = directory / ADAPTER_MANIFEST
    try:
        manifest = AdapterManifest.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise ValueError(
            f"{path} describes no adapter ({str(error).splitlines()[0]}); register it with "
            "recsys release adapt"
        ) from error
    expected = {CONFIG, WEIGHTS}
    if manifest.files.keys() != expected:
        raise ValueError(
            f"{path} names {sorted(manifest.files)}, an adapter has {sorted(expected)}"
        )
    for name, entry in manifest.files.items():
        file = directory / name
        if not file.is_file() or file.is_symlink():
            raise ValueError(f"{file} is missing; register the adapter again")
        if (found := digest_of_file(file)) != entry.sha256:
            raise ValueError(
                f"{file} is altered: its sha256 is {found}, {ADAPTER_MANIFEST} says "
                f"{entry.sha256}; register the adapter again"
            )
    return manifest


@dataclass(frozen=True, kw_only=True)
class Adapters:
    """The adapters of one bundle's models."""

    retrievers: Mapping[BaseName, AdaptedRetriever] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    """Version of each domain's adapter, as in ``served_by.adapter``."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Why an adapter is not served, by the folder's name."""

    def used(self, domain: str | None, sources: Collection[str]) -> str | None:
        """Return the adapter that answered; None for the base."""
        if domain is None:
            return None
        models = [self.retrievers[base] for base in self.retrievers if base in sources]
        return self.versions[domain] if any(one.knows(domain) for one in models) else None


NO_ADAPTERS = Adapters()


def models_of(bundle: Bundle) -> dict[BaseName, Model]:
    """List the models of a bundle that can have adapters."""
    models: dict[BaseName, Model] = {}
    if bundle.retriever is not None:
        models[names.TWO_TOWER.name] = bundle.retriever.model
    if bundle.sequence is not None:
        models[names.SEQUENCE.name] = bundle.sequence
    return models


@permitted()
def load_adapters(bundles_dir: Path, models: Mapping[BaseName, Model]) -> Adapters:
    """Load the published adapters into twins of a bundle's models; refuse those that do not fit."""
    digests: dict[BaseName, str] = {}
    twins: dict[BaseName, Model] = {}
    loaded: dict[BaseName, dict[str, LoraAdapter]] = {}
    versions: dict[str, str] = {}
    refused: dict[str, str] = {}
    for folder, directory in served_adapters(bundles_dir).items():
        try:
            manifest = read_registered(directory)
            base = manifest.base
            if base not in models:
                raise ValueError(f"{directory} adapts a {base}, which the bundle does not have")
            if base not in twins:
                twins[base] = copy_layers(models[base])
                digests[base] = digest_of_weights(models[base])
            adapter = load_adapter(directory, twins[base], base_digest=digests[base])
        except ValueError as error:
            refused[folder] = str(error)
            continue
        loaded.setdefault(base, {})[manifest.domain] = adapter
        versions[manifest.domain] = f"{manifest.domain}/{manifest.version}"
    retrievers: dict[BaseName, AdaptedRetriever] = {}
    for base, some in loaded.items():
        twin = twins[base]
        # Loading an adapter clears a model's cached items, which have not changed.
        twin.take_item_inputs(models[base])
        retrievers[base] = AdaptedRetriever(twin, some)
    return Adapters(retrievers=retrievers, versions=versions, refused=refused)
