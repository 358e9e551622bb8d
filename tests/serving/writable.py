"""Bundles as somebody finds them who may alter them: published files are read-only."""

from pathlib import Path


def writable(folder: Path) -> Path:
    """Give the owner of a folder the right to write to its files; return the folder."""
    for path in folder.rglob("*"):
        if path.is_file() and not path.is_symlink():
            path.chmod(path.stat().st_mode | 0o200)
    return folder
