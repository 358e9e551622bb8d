"""The code that a stage's artefact depends on: its module, the modules that imports, and so on.

Code counts by what it computes: docstrings, comments, annotations, formatting, the order of
imports, and imports for annotations alone change no digest. Imports inside functions count.
No module is imported. What is read of a file is kept next to its bytecode, by the file's digest.

The modules of ``pipelines.config`` count, but what they import does not: they name the settings of
every stage, and the values that a stage reads are part of its manifest.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from recsys.data.durable import digest_of_file, write_durably

PACKAGES = ("recsys", "features", "pipelines", "serving")
CONFIG = "pipelines.config"
LIBRARIES = {
    "faiss": "faiss-cpu",
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
AT_RUN_TIME = {"ClassVar", "InitVar", "constexpr"}
"""Names in an annotation that change what the code does."""
ANNOTATIONS = {"annotation", "returns"}
WORDING = {"ctx", "kind", "type_comment", "type_params"}
"""Fields of a syntax tree that change no result."""


class FileCode(NamedTuple):
    """Digests and imports of a file."""

    raw: str
    """Digest of its bytes."""
    digest: str
    """Digest of what it computes."""
    imports: tuple[str, ...] = ()
    """Imported names of a module; for ``from a import b`` it is ``a.b``."""


class Computation:
    """A module's syntax tree without its wording; the same text in every version of Python."""

    def __init__(self, text: str) -> None:
        self._annotated = {"TYPE_CHECKING", "annotations"}
        self._used: set[str] = set()
        self._imported: set[tuple[str, str]] = set()
        body = self._text(ast.parse(text).body)
        for_annotations = self._annotated - self._used
        kept = sorted(pair for pair in self._imported if pair[1] not in for_annotations)
        self.imports = tuple(sorted({name for name, _ in kept}))
        self.digest = hashlib.sha256(f"{kept}{body}".encode()).hexdigest()

    def _text(self, node: object, *, is_field: bool = False) -> str:
        """Write a node, a list of nodes or a value; "" for a statement that computes nothing."""
        match node:
            case list():
                texts = [self._text(one, is_field=is_field) for one in node]
                return ",".join(text for text in texts if text)
            case ast.Name():
                self._used.add(node.id)
                return f"Name({node.id})"
            case ast.Constant():
                return f"Constant({node.value!r})"
            case ast.Pass() | ast.Expr(value=ast.Constant(value=str())):
                return ""
            case ast.Import() | ast.ImportFrom():
                self._import(node)
                return ""
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                return self._text(node.orelse)
            case ast.AnnAssign() if not is_field:
                self._annotation(node.annotation)
                return self._text(ast.Assign([node.target], node.value) if node.value else [])
            case ast.AST():
                return self._fields(node)
        return repr(node)

    def _fields(self, node: ast.AST) -> str:
        """Write a node and what it consists of; fields that are absent or empty count as one."""
        fields = []
        for name in node._fields:
            value = getattr(node, name, None)
            if name in ANNOTATIONS and value is not None:
                value = self._annotation(value)
            if value is not None and name not in WORDING:
                text = self._text(value, is_field=isinstance(node, ast.ClassDef))
                fields += [f"{name}=[{text}]"] if text else []
        return f"{type(node).__name__}({','.join(fields)})"

    def _annotation(self, node: ast.expr) -> ast.expr | None:
        """Note the names of an annotation; return it if it counts at run time."""
        parts = list(ast.walk(node))
        names = {part.id for part in parts if isinstance(part, ast.Name)}
        names_within = {part.attr for part in parts if isinstance(part, ast.Attribute)}
        if AT_RUN_TIME & (names | names_within):
            return node
        self._annotated |= names
        return None

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        place = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
        for alias in node.names:
            bound = alias.name if place else alias.name.partition(".")[0]
            self._imported.add((place + alias.name, alias.asname or bound))


class SourceTree:
    """The four packages below a folder, each file read once."""

    def __init__(self, root: Path, kept: Path | None = None) -> None:
        """List the files."""
        self.root = root
        self.modules: dict[str, str] = {}
        """File of each module by dotted name, from the root; a package's is its ``__init__``."""
        self.data: dict[str, list[str]] = {}
        """Templates, CUDA sources and the like by the folder of the code that reads them."""
        for package in PACKAGES:
            self._list_files(package)
        self._kept = kept
        self._known = read_codes(kept)
        self._is_new = False
        self._codes: dict[str, FileCode] = {}
        self._closures: dict[str, frozenset[str]] = {}

    def _list_files(self, package: str) -> None:
        readers: dict[str, str] = {}
        for folder, _, names in os.walk(self.root / package):
            place = os.path.relpath(folder, self.root)
            if place.endswith("__pycache__"):
                continue
            has_code = any(name.endswith(".py") for name in names)
            # A folder without code belongs to the code above it.
            readers[place] = place if has_code else readers.get(place.rpartition("/")[0], place)
            for name in names:
                if name.endswith(".py"):
                    module = f"{place}/{name}".removesuffix(".py").removesuffix("/__init__")
                    self.modules[module.replace("/", ".")] = f"{place}/{name}"
                elif not name.endswith(NOT_READ):
                    self.data.setdefault(readers[place], []).append(f"{place}/{name}")

    def code(self, path: str) -> FileCode:
        """Read what counts of a file, by its path from the root."""
        if (found := self._codes.get(path)) is None:
            raw = digest_of_file(self.root / path)
            found = self._known.get(path)
            if found is None or found.raw != raw:
                found = self._known[path] = self._read(path, raw)
                self._is_new = True
            self._codes[path] = found
        return found

    def _read(self, path: str, raw: str) -> FileCode:
        if not path.endswith(".py"):
            return FileCode(raw, raw)
        computation = Computation((self.root / path).read_text(encoding="utf-8"))
        return FileCode(raw, computation.digest, computation.imports)

    def imports(self, module: str) -> Iterator[str]:
        """List the modules of ours that one imports, and the packages around them."""
        for name in self.code(self.modules[module]).imports:
            yield from self._modules_within(name)

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
                    todo.update(set(self.imports(one)) - found)
            self._closures[module] = frozenset(found)
        return self._closures[module]

    def libraries(self, module: str) -> list[str]:
        """List the distributions that a module's closure imports."""
        names = (
            name.partition(".")[0]
            for one in self.closure(module)
            for name in self.code(self.modules[one]).imports
        )
        return sorted({LIBRARIES[name] for name in names if name in LIBRARIES})

    def digests(self, module: str) -> dict[str, str]:
        """Return the digest of each file of a module's closure, and of the data next to them."""
        sources = {self.modules[one] for one in self.closure(module)}
        folders = {path.rpartition("/")[0] for path in sources}
        data = (self.data.get(folder, ()) for folder in folders)
        found = {path: self.code(path).digest for path in sorted(sources.union(*data))}
        self._keep()
        return found

    def digest(self, module: str) -> str:
        """Hash what a module's closure computes (sha256, hex)."""
        lines = "".join(f"{path}\0{digest}\0" for path, digest in self.digests(module).items())
        return hashlib.sha256(lines.encode()).hexdigest()

    def _keep(self) -> None:
        """Keep the parsed files; without a place to write to, the next process reads again."""
        if self._is_new and self._kept is not None:
            text = json.dumps({"reader": digest_of_file(HERE), "files": self._known})
            with suppress(OSError):
                self._kept.parent.mkdir(exist_ok=True)
                write_durably(self._kept, text)
        self._is_new = False


def read_codes(kept: Path | None) -> dict[str, FileCode]:
    """Read what an earlier process kept of each file; nothing if the file is damaged or older."""
    if kept is None or not kept.exists():
        return {}
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
        files = {
            path: FileCode(raw, digest, tuple(imports))
            for path, (raw, digest, imports) in found["files"].items()
        }
        return files if found["reader"] == digest_of_file(HERE) else {}
    except (OSError, ValueError, TypeError, LookupError):
        return {}


HERE = Path(__file__).resolve()
INSTALLED = SourceTree(
    HERE.parents[2], Path(importlib.util.cache_from_source(str(HERE))).with_suffix(".json")
)
