"""The TypeScript client, compiled against today's OpenAPI document, on a running server."""

import os
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

import serving
from serving.web.descriptions import document

SOURCE = Path(serving.__file__).parent / "client" / "typescript"


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    if not (SOURCE / "node_modules").is_dir() or shutil.which("node") is None:
        pytest.skip("needs Node.js and the client's compiler: make install-typescript")
    folder = tmp_path_factory.mktemp("client")
    shutil.copytree(SOURCE / "src", folder / "src", ignore=shutil.ignore_patterns("schema.d.ts"))
    for name in ("package.json", "tsconfig.json"):
        shutil.copy(SOURCE / name, folder)
    (folder / "node_modules").symlink_to(SOURCE / "node_modules")
    (folder / "openapi.json").write_bytes(orjson.dumps(document()))
    return folder


def npm(package, *arguments, **environment):
    done = subprocess.run(
        ["npm", "run", *arguments],
        cwd=package,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_client_is_typed_by_the_document_and_does_what_it_says(package, shared):
    npm(package, "generate")
    printed = npm(package, "test", RECSYS_URL=shared.url)
    assert "# fail 0" in printed
    assert "# pass 6" in printed
