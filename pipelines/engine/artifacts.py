"""Stage directories that are whole or absent.

A stage writes into ``.partial-<stage>``. When it is done, every file is fsynced, ``run.json`` (what
may differ between two equal runs: seconds, host, time, memory) and then ``manifest.json`` (what may
not: inputs' digests, resolved configuration, versions, row counts, digest of each file) are
written, and the directory is renamed into place. So a directory with a manifest is complete, and
all other files of a killed run are swept by the next one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from pydantic_core import to_jsonable_python

from recsys.data.durable import PARTIAL, digest_of_file, fsync, fsync_tree, write_durably

FORMAT = 2
"""Format of stage directories, raised whenever a stage's files or keys are renamed."""
MANIFEST = "manifest.json"
RUN = "run.json"
REPLACED = ".replaced-"


def cache_dir(name: str) -> Path:
    """Return a folder that all workspaces share: RECSYS_DATA_CACHE/<name>."""
    return Path(os.environ.get("RECSYS_DATA_CACHE", "~/.cache/recsys")).expanduser() / name


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Inputs and settings of an artefact; two runs with equal inputs write equal bytes."""

    stage: str
    inputs: Mapping[str, str]
    """Digest of each raw file and of each artefact read, by name."""
    config: Mapping[str, Any]
    """The resolved sections of the run's configuration that the stage depends on."""
    versions: Mapping[str, str]
    """Digest of the stage's own code, and versions of the libraries that shape its output."""
    rows: Mapping[str, int]
    files: Mapping[str, str]
    """sha256 of each file by its path inside the artefact."""

    format: int = FORMAT

    @classmethod
    def load(cls, directory: Path) -> Manifest | None:
        """Read the manifest of a stage of this version; None where it is not complete."""
        found = cls.read(directory)
        if found is not None:
            found.check_format(directory)
        return found

    @classmethod
    def read(cls, directory: Path) -> Manifest | None:
        """Read a directory's manifest of any format; None where it is not complete."""
        path = directory / MANIFEST
        try:
            # The first format had no number.
            return cls(**{"format": 1, **json.loads(path.read_text())})
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (json.JSONDecodeError, UnicodeDecodeError, TypeError) as error:
            raise ValueError(
                f"{path} is not a stage manifest ({error}); delete {directory} and run again"
            ) from error

    def check_format(self, directory: Path) -> None:
        """Refuse a stage directory that another version wrote."""
        if self.format != FORMAT:
            workspace = directory.absolute().parent
            raise ValueError(
                f"{workspace} is a workspace of format {self.format} (its {directory.name} says "
                f"so); this version of recsys reads and writes format {FORMAT}. Choose a new "
                "folder with --set workspace=FOLDER, or delete this one and run again"
            )

    @property
    def making(self) -> str:
        """Digest of what the artefact is made from, as opposed to what came out."""
        names = ("format", "stage", "inputs", "config", "versions")
        return digest_of_json({name: getattr(self, name) for name in names})

    @property
    def output(self) -> str:
        """Digest of what came out: the files and their contents."""
        return digest_of_json(self.files)

    def to_json(self) -> str:
        return to_json(asdict(self))


def plain(value: Any) -> Any:
    """Turn a configuration into tables of strings, numbers, lists: what TOML and JSON hold."""
    return to_jsonable_python(value)


def to_json(value: Any) -> str:
    """Encode with sorted keys, so that equal values give equal bytes."""
    return json.dumps(value, indent=2, sort_keys=True, ensure_ascii=False, default=str) + "\n"


def write_json(path: Path, value: Any) -> None:
    """Write a document so that it is whole or absent, whatever happens."""
    write_durably(path, to_json(value))


def read_json(path: Path) -> Any:
    """Read a JSON file of an artefact."""
    return json.loads(path.read_text(encoding="utf-8"))


def digest_of_json(value: Any) -> str:
    """Hash a value's JSON (sha256, hex)."""
    return hashlib.sha256(to_json(value).encode()).hexdigest()


def files_under(directory: Path) -> Iterator[Path]:
    """List the regular files below a directory in a fixed order."""
    return (path for path in sorted(directory.rglob("*")) if path.is_file())


def begin(final: Path) -> Path:
    """Make the empty directory in which the artefact ``final`` is to be written."""
    partial = final.with_name(PARTIAL + final.name)
    if partial.exists():
        shutil.rmtree(partial)
    partial.mkdir(parents=True)
    return partial


def commit(partial: Path, final: Path, *, manifest: Manifest, run: Mapping[str, Any]) -> Manifest:
    """Complete a written directory and rename it into place."""
    names = {str(path.relative_to(partial)): path for path in files_under(partial)}
    if reserved := {MANIFEST, RUN} & names.keys():
        raise ValueError(f"stage {manifest.stage} wrote {sorted(reserved)}, which are reserved")
    complete = replace(manifest, files={name: digest_of_file(one) for name, one in names.items()})
    fsync_tree(partial)
    write_json(partial / RUN, run)
    write_durably(partial / MANIFEST, complete.to_json())
    move_into_place(partial, final)
    return complete


def move_into_place(partial: Path, final: Path) -> None:
    """Rename a complete directory over an earlier one.

    Between the two renames there is nothing at ``final``; ``sweep`` finishes the move if a kill
    falls there.
    """
    replaced = final.with_name(REPLACED + final.name)
    if final.exists():
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
    partial.rename(final)
    fsync(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def sweep(folder: Path, stage: str = "*") -> list[str]:
    """Clear what a killed run left in a folder of artefacts, and finish a half-done rename.

    Only the holder of the workspace's lock, or of the stage's, may call this.
    """
    partial = sorted(folder.glob(f"{PARTIAL}{stage}"))
    for leftover in partial:
        if (leftover / MANIFEST).exists():
            move_into_place(leftover, folder / leftover.name.removeprefix(PARTIAL))
        elif leftover.is_dir():
            shutil.rmtree(leftover)
        else:
            leftover.unlink()
    replaced = sorted(folder.glob(f"{REPLACED}{stage}"))
    for leftover in replaced:
        final = folder / leftover.name.removeprefix(REPLACED)
        if final.exists():
            shutil.rmtree(leftover)
        else:
            leftover.rename(final)
    return [leftover.name for leftover in (*partial, *replaced)]


def check_files(directory: Path, manifest: Manifest, *, contents: bool = False) -> None:
    """Check that an artefact's files are all there, and with ``contents`` that none was altered."""
    for name, digest in manifest.files.items():
        path = directory / name
        if not path.is_file():
            raise ValueError(f"{path} is missing; delete {directory} and run again")
        if contents and (found := digest_of_file(path)) != digest:
            raise ValueError(
                f"{path} was altered: its sha256 is {found}, the manifest says {digest}; "
                f"delete {directory} and run again"
            )


class RunLog:
    """The log of one run of a stage, and the tracker of a training loop; this one keeps nothing.

    ``pipelines.tracking.outbox`` has the one that is kept and sent to a tracking server.
    """

    def log(self, step: int, **values: float) -> None:
        """Log metrics after ``step`` steps; a value may be NaN or infinite."""

    def metrics(self, values: Mapping[str, float]) -> None:
        """Log the run's results; ``a/b`` groups, as in ``test/cold_items/ndcg@10``."""

    def tags(self, values: Mapping[str, str]) -> None:
        """Set tags of the run."""
