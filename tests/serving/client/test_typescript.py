"""The TypeScript client, compiled against today's OpenAPI document, on a running server."""

import os
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

import serving
from serving.web.openapi import document
from tests.serving.server.running import running

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


def test_the_client_is_typed_by_the_document_and_does_what_it_says(
    package, released, tmp_path_factory
):
    npm(package, "generate")
    folder = tmp_path_factory.mktemp("server")
    store = f"sqlite:{folder / 'online'}"
    with running(released, folder / "log", store=store, allow_admin="true") as server:
        printed = npm(package, "test", RECSYS_URL=server.url)
    assert "# fail 0" in printed
    assert "# pass 6" in printed


def test_a_call_that_the_document_does_not_allow_does_not_compile(package):
    npm(package, "generate")
    (package / "src" / "wrong.ts").write_text(
        'import { Client } from "./client.js";\n'
        'new Client("http://x").recommend({ kk: 5 });\n'
        'new Client("http://x").event({ user_id: "u", item_id: "i", event_type: "glance" });\n'
    )
    done = subprocess.run(
        ["npx", "tsc", "--noEmit"], cwd=package, capture_output=True, text=True, timeout=300
    )
    (package / "src" / "wrong.ts").unlink()
    assert done.returncode != 0
    assert done.stdout.count("src/wrong.ts") == 2
