"""A bundle directory's manifest: which files belong to it, their digests, and what they add up to.

``manifest.json`` is written last, so a directory with a manifest is whole; nothing in a bundle is
opened before its size and sha256 are what the manifest says. A bundle's own digest is the sha256 of
its manifest's bytes, and a delta names its parent by that.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from recsys.data.durable import digest_of_file, digests_once, replace_link
from recsys.models.names import MODELS, TWO_TOWER, check_outside

SCHEMA_VERSION: Literal[3] = 3
MANIFEST = "manifest.json"
CURRENT = "current"
MAX_MANIFEST_BYTES = 16 << 20
WRITABLE = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
VERSION_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}(\+[1-9][0-9]{0,5})?$"

Profile = Literal["fast", "full"]
"""Which sources are queried: ``full`` adds beam search and all members of a sequence model."""
PARTS = (*(one.name for one in MODELS), "blend_fast", "blend_full", "ranker", "text_search")
"""Folders of models that this version of the platform reads."""


_TENSORS = frozenset([".json", ".safetensors"])
FILES_ALLOWED: dict[str, frozenset[str]] = {
    **dict.fromkeys([*PARTS, "quantizer"], _TENSORS),
    **dict.fromkeys(["catalogue", "users", "histories", "properties"], frozenset([".npy"])),
    **dict.fromkeys([TWO_TOWER.name, "semantic_ids", "text_search"], _TENSORS | {".npy"}),
    "content": frozenset([".npy", ".safetensors"]),
    "index": frozenset([".json", ".faiss"]),
}
"""Kinds of file by folder. A bundle has no other files, least of all a pickle."""

Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 48)]
Version = Annotated[str, Field(pattern=VERSION_PATTERN)]
FeatureName = Annotated[str, Field(pattern=r"^[^/\\\x00]{1,100}$")]
"""Becomes part of a file's name."""
PROPERTY_NAME_PATTERN = r"^[^/\\.`\x00-\x1f]{1,60}$"
PropertyName = Annotated[str, Field(pattern=PROPERTY_NAME_PATTERN)]
"""Begins a file's name, whose rest begins with a dot."""
PropertyKind = Literal["number", "date", "boolean", "text", "list"]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class FileEntry(_Strict):
    """One file as it was written."""

    sha256: Sha256
    size: Count

    @classmethod
    def of(cls, path: Path) -> FileEntry:
        """Digest a file."""
        return cls(sha256=digest_of_file(path), size=path.stat().st_size)


class Parent(_Strict):
    """The bundle, or earlier delta, whose rows a delta appends to."""

    version: Version
    digest: Sha256


class Verdict(_Strict):
    """Result of one release check."""

    name: str
    value: float | None
    bound: float | None
    passed: bool
    reason: str = ""


class EnrichmentSource(_Strict):
    """How a language model described items: new ones must be described alike."""

    settings: dict[str, Any]
    """All settings of enrichment."""
    model: str
    """Identity of the model that answered."""
    prompt_version: str
    kept: None = None
    """None: a bundle from before whose attributes were chosen one by one is refused."""


class ContentSource(_Strict):
    """How item text became content embeddings."""

    encoder: str
    text_columns: list[str]
    settings: dict[str, Any] = {}
    """All settings of the encoder, where the two above are not all of them."""
    table: dict[str, Any] = {}
    """Columns and separators of the items table (fields of `features.schema.SourceConfig`)."""
    name: str = ""
    """Identity of the vectors: the encoder that appends items must give the same."""
    columns: list[dict[str, Any]] = []
    """How the columns of ``content.columns`` were encoded, whose parts follow the text's."""
    images: Literal[""] = ""
    """Empty: a bundle from before that names a vision model is refused."""
    enrichment: EnrichmentSource | None = None
    """Model that described the items before they were encoded; None without."""


class SemanticIdSource(_Strict):
    """Which semantic IDs the items have; of a delta, after it is applied."""

    version: Sha256
    quantizer_digest: Sha256
    level_sizes: list[Count]
    num_with_id: Count
    """Item rows that have an ID."""


class Dimensions(_Strict):
    """Row counts, each with row 0; of a delta, what they are after it is applied."""

    num_item_rows: Count
    num_user_rows: Count
    num_category_rows: Count
    num_events: Count
    embedding_dim: Count
    """Width of item vectors and of the index, 0 without a two-tower."""


class BundleManifest(_Strict):
    """Contents of a bundle or a delta."""

    schema_version: Literal[3] = SCHEMA_VERSION
    kind: Literal["bundle", "delta"]
    version: Version
    parent: Parent | None = None
    profile: Profile = "fast"
    """The fullest that can be served."""
    dimensions: Dimensions
    vocabularies: dict[str, Sha256]
    """Digest of the ids of items, users and categories that this directory holds."""
    user_features: dict[FeatureName, Count] = {}
    """Number of categorical rows by the feature's name, row 0 (unknown) included."""
    context_features: dict[FeatureName, Count] = {}
    event_types: list[str] = []
    """Types of events by row, from 1; none where all are of one type."""
    properties: dict[PropertyName, PropertyKind] = {}
    """Kinds of the items' properties; a delta has those of its parent."""
    models: list[str]
    specs: dict[str, str] = {}
    """Address of the row of each model of another package, whose package is needed to serve it."""
    metrics: dict[str, dict[str, float]] = {}
    """Test metrics by model."""
    verdicts: list[Verdict] = []
    config_digest: str = ""
    content: ContentSource | None = None
    """Inputs of the content embeddings; needed to append items."""
    semantic_ids: SemanticIdSource | None = None
    """None where items have no semantic IDs."""
    exclude_history: bool = True
    """True if lists were evaluated without what a user already interacted with, which is how they
    are served unless the deployment says otherwise."""
    files: dict[str, FileEntry]

    @model_validator(mode="after")
    def _knows_models(self) -> Self:
        check_outside(self.specs)
        if unknown := [name for name in self.models if name not in (*PARTS, *self.specs)]:
            raise ValueError(
                f"this version of the platform does not know the model {unknown[0]!r}, only "
                f"{', '.join(PARTS)}; serve the bundle with the version that released it"
            )
        return self


VOCABULARY_TABLES = {
    "items": "catalogue/item_ids",
    "users": "users/user_ids",
    "categories": "catalogue/category_names",
}


def vocabulary_digests(files: dict[str, FileEntry]) -> dict[str, str]:
    """Digest each id table from the digests of its two files."""
    found = {}
    for name, path in VOCABULARY_TABLES.items():
        parts = [files.get(f"{path}.{part}.npy") for part in ("utf8", "offsets")]
        if all(parts):
            joined = "".join(part.sha256 for part in parts if part is not None)
            found[name] = hashlib.sha256(joined.encode()).hexdigest()
    return found


def bundle_directory(bundles_dir: Path, version: str) -> Path:
    """Return the directory of a version."""
    return bundles_dir / f"bundle-{version}"


def read_manifest(directory: Path) -> tuple[BundleManifest, str]:
    """Read a bundle's manifest and the bundle's digest."""
    path = directory / MANIFEST
    if not path.is_file() or path.is_symlink():
        raise ValueError(
            f"{directory} is not a bundle: it has no {MANIFEST}. Name the directory that "
            "`recsys run` released (bundle-<version>) or the `current` link beside it"
        )
    if path.stat().st_size > MAX_MANIFEST_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, at most {MAX_MANIFEST_BYTES}")
    content = path.read_bytes()
    try:
        document = json.loads(content)
        check_schema_version(directory, document)
        manifest = BundleManifest.model_validate(document)
    except OtherVersionError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(
            f"{path} is not a bundle manifest of schema {SCHEMA_VERSION} "
            f"({_first_line(error)}); release the bundle again with this version of the platform"
        ) from error
    return manifest, hashlib.sha256(content).hexdigest()


class OtherVersionError(ValueError):
    """A bundle was written by another version of the platform."""


def check_schema_version(directory: Path, document: Any) -> None:
    """Refuse a bundle of another version by its number, before the rest of its manifest is read."""
    found = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(found, int) and found != SCHEMA_VERSION:
        raise OtherVersionError(
            f"{directory} is a bundle of schema {found}; this version of the platform reads and "
            f"writes schema {SCHEMA_VERSION}. Release it again with this version, into a folder of "
            "its own (release.bundles) or after deleting this one; or serve it with the version "
            "that wrote it"
        )


def _first_line(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_input=False, include_url=False)[0]
        return f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    return str(error).splitlines()[0]


def verify_files(directory: Path, manifest: BundleManifest) -> None:
    """Check that exactly the manifest's files are there, each as it was written."""
    check_names(directory, manifest)
    present = {path.relative_to(directory).as_posix() for path in _everything_under(directory)}
    if extra := sorted(present - manifest.files.keys() - {MANIFEST}):
        raise ValueError(
            f"{directory / extra[0]} is not in the bundle's manifest; nothing but what was "
            "released may lie in a bundle. Remove it, or release the bundle again"
        )
    paths = [directory / name for name in manifest.files]
    for path, (name, entry) in zip(paths, manifest.files.items(), strict=True):
        if name not in present:
            raise ValueError(f"{path} is missing from the bundle; copy or release it again")
        if path.stat().st_size != entry.size:
            raise ValueError(
                f"{path} has {path.stat().st_size} bytes, the manifest says {entry.size}: it is "
                "truncated or altered. Copy or release the bundle again"
            )
    for path, entry, found in zip(paths, manifest.files.values(), digests_once(paths), strict=True):
        if found != entry.sha256:
            raise ValueError(
                f"{path} is altered: its sha256 is {found}, the manifest says {entry.sha256}. "
                "Copy or release the bundle again"
            )


def check_names(directory: Path, manifest: BundleManifest) -> None:
    """Check that a manifest names only what a bundle may hold, inside of its directory."""
    for name in manifest.files:
        _check_name(directory, name, manifest.specs)


def _check_name(directory: Path, name: str, outside: Collection[str]) -> None:
    parts = PurePosixPath(name).parts
    plain = PurePosixPath(*parts).as_posix() == name and "\\" not in name and "\0" not in name
    if not plain or len(parts) != 2 or ".." in parts or "/" in parts:
        raise ValueError(
            f"the manifest of {directory} names the file {name!r}, which is not a path "
            "<folder>/<file> inside the bundle; do not use this bundle"
        )
    of_outside = _TENSORS if parts[0] in outside else frozenset[str]()
    allowed = FILES_ALLOWED.get(parts[0], of_outside)
    if PurePosixPath(name).suffix not in allowed:
        raise ValueError(
            f"the manifest of {directory} names {name!r}; a bundle holds only "
            f"{sorted(FILES_ALLOWED)} with safetensors, .npy, .faiss and JSON files as each needs. "
            "Do not use this bundle"
        )


def _everything_under(directory: Path) -> Iterator[Path]:
    """List the files; a link or a special file is refused."""
    for path in sorted(directory.rglob("*")):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise ValueError(f"{path} is not a regular file; a bundle holds regular files only")
        if path.is_file():
            yield path


def seal(directory: Path, **fields: Any) -> BundleManifest:
    """Digest every file of a written directory, write its manifest, and make all read-only."""
    files = {}
    for path in _everything_under(directory):
        name = path.relative_to(directory).as_posix()
        _check_name(directory, name, fields.get("specs", ()))
        files[name] = FileEntry.of(path)
    manifest = BundleManifest(files=files, vocabularies=vocabulary_digests(files), **fields)
    left_out = None if manifest.specs else {"specs"}
    document = manifest.model_dump(mode="json", exclude=left_out)
    text = json.dumps(document, indent=2, sort_keys=True) + "\n"
    (directory / MANIFEST).write_text(text, encoding="utf-8")
    make_read_only(directory)
    return manifest


def make_read_only(directory: Path) -> None:
    """Take the right to write to a bundle's files from everyone, so that no copy truncates one.

    A server maps these files, and reading a truncated mapped file ends its process. Folders
    keep their rights: the owner can still delete a bundle, whose files stay whole for a server that
    has them open. Files that somebody else owns stay as they are.
    """
    for path in _everything_under(directory):
        mode = path.stat().st_mode
        if mode & WRITABLE:
            with suppress(PermissionError):
                path.chmod(mode & ~WRITABLE)


def publish(bundles_dir: Path, version: str) -> Path:
    """Point ``current`` at a bundle or delta, in one rename."""
    directory = bundle_directory(bundles_dir, version)
    manifest, _ = read_manifest(directory)
    verify_files(directory, manifest)
    make_read_only(directory)
    replace_link(bundles_dir / CURRENT, directory.name)
    return bundles_dir / CURRENT


@dataclass(frozen=True)
class Link:
    """A bundle, or the delta that is appended to it."""

    directory: Path
    manifest: BundleManifest
    digest: str


def read_chain(directory: Path) -> list[Link]:
    """Read a bundle's manifest, or those of a delta's parent and of the delta."""
    manifest, digest = read_manifest(directory)
    chain = [Link(directory, manifest, digest)]
    if (parent := manifest.parent) is not None:
        older = bundle_directory(directory.parent, parent.version)
        manifest, digest = read_manifest(older)
        if digest != parent.digest or manifest.version != parent.version:
            raise ValueError(
                f"{directory} was made for {parent.version} with digest {parent.digest}, but "
                f"{older} holds {manifest.version} with digest {digest}; make the delta again from "
                "the bundle that is there"
            )
        chain.insert(0, Link(older, manifest, digest))
    kinds = [link.manifest.kind for link in chain]
    if kinds not in (["bundle"], ["bundle", "delta"]):
        raise ValueError(
            f"{directory} is made of {' and '.join(kinds)}; a delta is appended to a bundle, and a "
            "bundle has no parent. Do not use it"
        )
    return chain
