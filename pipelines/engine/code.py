"""The source that a stage's artefact depends on: its module, what that imports, and so on.

Imports are found in the text, those inside functions too, so that nothing has to be imported and
all stages are looked at in a tenth of a second. Imports for type checkers are left out.

The modules of ``pipelines.config`` count, but what they import does not: they name the settings of
every stage, and the values that a stage reads are part of its manifest.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from recsys.data.durable import digest_of_file

PACKAGES = ("recsys", "features", "pipelines", "serving")
CONFIG = "pipelines.config"
LIBRARIES = {
    "altair": "altair",
    "faiss": "faiss-cpu",
    "jinja2": "jinja2",
    "numpy": "numpy",
    "openai": "openai",
    "polars": "polars",
    "sentence_transformers": "sentence-transformers",
    "torch": "torch",
    "transformers": "transformers",
    "vl_convert": "vl-convert-python",
}
"""Distributions whose version shapes what comes out, by the name they are imported by."""
NOT_READ = (".md", ".pyc", "~")

FOR_TYPE_CHECKERS = re.compile(r"^if TYPE_CHECKING:\n(?:[ \t]+.*\n|\n)+", re.MULTILINE)
IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+([\w.]+)[ \t]+import[ \t]+(\((?:[^)#]|#.*)*\)|.+)|import[ \t]+(.+))",
    re.MULTILINE,
)
COMMENT = re.compile(r"#.*")
NAME = re.compile(r"([\w.]+)(?:[ \t]+as[ \t]+\w+)?")


def imported_names(text: str) -> Iterator[str]:
    """Name what a module imports; of ``from a import b`` it is ``a.b``."""
    if "TYPE_CHECKING" in text:
        text = FOR_TYPE_CHECKERS.sub("", text)
    for place, names, plain in IMPORT.findall(text):
        for name in NAME.findall(COMMENT.sub("", names or plain)):
            yield f"{place}.{name}" if place else name


class SourceTree:
    """The four packages below a folder, each file read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.modules: dict[str, str] = {}
        """File of each module by dotted name, from the root; a package's is its ``__init__``."""
        self.data: dict[str, list[str]] = {}
        """Templates, CUDA sources and the like by the folder of the code that reads them."""
        for package in PACKAGES:
            self._list_files(package)
        self._digests: dict[str, str] = {}
        self._imports: dict[str, tuple[set[str], set[str]]] = {}
        self._closures: dict[str, frozenset[str]] = {}
        self._files: dict[str, list[str]] = {}

    def _list_files(self, package: str) -> None:
        readers: dict[str, str] = {}
        for folder, _, names in os.walk(self.root / package):
            place = os.path.relpath(folder, self.root)
            has_code = any(name.endswith(".py") for name in names)
            # A folder without code belongs to the code above it.
            readers[place] = place if has_code else readers.get(place.rpartition("/")[0], place)
            for name in names:
                if name.endswith(".py"):
                    module = f"{place}/{name}".removesuffix(".py").removesuffix("/__init__")
                    self.modules[module.replace("/", ".")] = f"{place}/{name}"
                elif not name.endswith(NOT_READ):
                    self.data.setdefault(readers[place], []).append(f"{place}/{name}")

    def imports_of(self, module: str) -> tuple[set[str], set[str]]:
        """Return the modules of ours that one imports, and the libraries of ``LIBRARIES``."""
        if module not in self._imports:
            ours, libraries = set(), set()
            text = (self.root / self.modules[module]).read_text(encoding="utf-8")
            for name in imported_names(text):
                top = name.partition(".")[0]
                if top in LIBRARIES:
                    libraries.add(LIBRARIES[top])
                elif top in PACKAGES:
                    ours |= set(self._modules_within(name))
            self._imports[module] = ours, libraries
        return self._imports[module]

    def _modules_within(self, name: str) -> Iterator[str]:
        """List the module that a dotted name begins with, and the packages around it."""
        parts = name.split(".")
        for length in range(1, len(parts) + 1):
            if (module := ".".join(parts[:length])) in self.modules:
                yield module

    def closure(self, module: str) -> frozenset[str]:
        """Return a module and all that it imports, directly or not; empty for one not of ours."""
        if module not in self._closures:
            found: set[str] = set()
            todo = set(self._modules_within(module))
            while todo:
                one = todo.pop()
                found.add(one)
                if not one.startswith(f"{CONFIG}."):
                    todo |= self.imports_of(one)[0] - found
            self._closures[module] = frozenset(found)
        return self._closures[module]

    def libraries(self, module: str) -> list[str]:
        """Name the distributions that a module's closure imports."""
        return sorted(set().union(*(self.imports_of(one)[1] for one in self.closure(module))))

    def files(self, module: str) -> list[str]:
        """List the files of a module's closure, and what lies beside them for them to read."""
        if module not in self._files:
            sources = {self.modules[one] for one in self.closure(module)}
            folders = {path.rpartition("/")[0] for path in sources}
            data = (self.data.get(folder, ()) for folder in folders)
            self._files[module] = sorted(sources.union(*data))
        return self._files[module]

    def digest(self, module: str) -> str:
        """Hash the files of a module's closure (sha256, hex)."""
        digest = hashlib.sha256()
        for path in self.files(module):
            if path not in self._digests:
                self._digests[path] = digest_of_file(self.root / path)
            digest.update(f"{path}\0{self._digests[path]}\0".encode())
        return digest.hexdigest()


INSTALLED = SourceTree(Path(__file__).resolve().parents[2])
