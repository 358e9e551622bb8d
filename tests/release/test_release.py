"""What a release must hold: versions, licences, the bill of materials, the check itself."""

import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from datetime import date
from importlib.metadata import PathDistribution
from pathlib import Path

import pytest

from tests.release import audit, build, changelog, check, licences, sbom

TODAY = date(2026, 11, 23)
GOOD = "# Changelog\n\n## 0.2.0 (2026-11-20)\n\n- New.\n\n## 0.1.0 (2026-11-01)\n\n- First.\n"


def test_versions_and_changelog_of_the_tree_agree():
    assert changelog.read_tree() == []


def test_a_good_changelog_is_accepted_and_an_unreleased_part_until_release():
    assert changelog.faults(GOOD, "0.2.0", TODAY, releasing=True) == []
    later = GOOD.replace("## 0.2.0", "## Unreleased\n\n- Soon.\n\n## 0.2.0", 1)
    assert changelog.faults(later, "0.2.0", TODAY) == []
    for old, new, fault in (
        ("", "", "give it a version"),
        ("0.2.0", "0.3.0", "the package's version is 0.2.0, the newest of CHANGELOG.md 0.3.0"),
        ("0.2.0 (2026-11-20)", "v0.2", "write '## 1.2.3 (2026-11-23)'"),
        ("2026-11-20", "2026-10-20", "stands above (0, 1, 0)"),
        ("0.1.0", "0.2.0", "stands above (0, 2, 0)"),
        ("2026-11-20", "2026-12-24", "in the future"),
        ("0.1.0 (2026-11-01)", "Unreleased", "below at most one"),
    ):
        found = changelog.faults(later.replace(old, new), "0.2.0", TODAY, releasing=True)
        assert fault in "; ".join(found)


def test_the_page_of_licences_is_that_of_the_locks_and_all_are_permitted():
    assert licences.refused(licences.of_cpu()) == {}
    assert set(licences.refused(licences.of_gpu()).values()) <= {licences.NVIDIA}
    written = licences.PAGE.read_text(encoding="utf-8")
    assert written == licences.page(), "run python -m tests.release.licences"


def test_a_licence_is_permitted_or_not():
    for expression, permitted in {
        "MIT": True,
        "GPL-3.0-only": False,
        "GPL-3.0-only OR MIT": True,
        "MPL-2.0 AND (Apache-2.0 OR AGPL-3.0-only)": True,
        "MIT AND (LGPL-2.1-only OR AGPL-3.0-only)": False,
        "Apache-2.0 WITH LLVM-exception": True,
        "LicenseRef-Unheard-Of": False,
    }.items():
        assert licences.is_permitted(expression) is permitted, expression


def distribution_of(folder: Path, *lines: str, text: str = "") -> PathDistribution:
    info = folder / "thing-1.0.dist-info"
    info.mkdir()
    head = ["Metadata-Version: 2.1", "Name: thing", "Version: 1.0", *lines]
    (info / "METADATA").write_text("\n".join(head) + "\n")
    (info / "LICENSE").write_text(text)
    (info / "RECORD").write_text("thing-1.0.dist-info/LICENSE,,\n")
    return PathDistribution(info)


def test_licences_are_read_from_expression_text_classifier_and_file_or_refused(tmp_path):
    bsd = "Redistribution and use in source and binary forms ... Neither the name of ..."
    cases = [
        (("License-Expression: MIT OR Apache-2.0", "License: odd"), "", "MIT OR Apache-2.0"),
        (("License: Apache 2.0",), "", "Apache-2.0"),
        (("Classifier: License :: OSI Approved :: MIT License",), "", "MIT"),
        (("Classifier: License :: OSI Approved :: BSD License",), bsd, "BSD-3-Clause"),
        (("License: BSD",), bsd.split("Neither")[0], "BSD-2-Clause"),
    ]
    for number, (lines, text, expected) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        assert licences.licence_of(distribution_of(folder, *lines, text=text)) == expected
    with pytest.raises(licences.UnknownLicenceError, match=r"thing 1\.0: no known licence"):
        licences.licence_of(distribution_of(tmp_path, "License: ask the author"))


def test_the_bill_of_materials_names_every_locked_package_and_who_needs_it(tmp_path):
    target = tmp_path / "sbom.json"
    locked = licences.locked("cpu")
    assert sbom.write(target) == len(locked)
    bill = json.loads(target.read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert {one["name"]: one["version"] for one in bill["components"]} == locked
    assert all(one["licenses"] for one in bill["components"])
    needed = {one["ref"]: one.get("dependsOn", []) for one in bill["dependencies"]}
    own = bill["metadata"]["component"]["purl"]
    assert own.startswith("pkg:pypi/recsys-platform@")
    assert f"pkg:pypi/torch@{locked['torch']}" in needed[own]
    starlette = f"pkg:pypi/starlette@{locked['starlette']}"
    assert starlette in needed[f"pkg:pypi/fastapi@{locked['fastapi']}"]


def test_the_check_names_what_failed_and_goes_on(monkeypatch, capsys):
    def fails() -> str:
        raise ValueError("this is missing: write it")

    monkeypatch.setattr(sys, "argv", ["check", "--quick"])
    monkeypatch.setattr(check, "check_tree", lambda: "clean")
    monkeypatch.setattr(check, "check_changelog", fails)
    for later in ("check_licences", "check_sbom", "check_docs"):
        monkeypatch.setattr(check, later, lambda: "fine")
    with pytest.raises(SystemExit, match="not ready to release: changelog"):
        check.main()
    printed = capsys.readouterr().out
    assert "this is missing: write it" in printed
    assert printed.count("ok ") == 4


def test_the_audit_names_what_is_vulnerable_and_is_no_answer_without_one(tmp_path, monkeypatch):
    fault = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["1.1"], "description": ""}
    packages = [
        {"name": "safe", "version": "2.0", "vulns": []},
        {"name": "risky", "version": "1.0", "vulns": [fault]},
        {"name": "strange", "skip_reason": "not on the index"},
    ]
    lock = tmp_path / "cpu.txt"
    program = tmp_path / "pip_audit.py"
    asked = (sys.executable, str(program))

    def answer(text):
        program.write_text(
            f"import sys; assert {str(lock)!r} in sys.argv; print({text!r}); sys.exit(1)"
        )

    answer(json.dumps({"dependencies": packages}))
    unread = "1 of 3 packages were not checked, the first because: not on the index"
    assert audit.ask(lock, asked) == [unread, "risky 1.0 has PYSEC-1; safe: ['1.1']"]
    monkeypatch.setattr(audit, "ACCEPTED", {"CVE-1": "only on Windows"})
    assert audit.ask(lock, asked) == [unread]
    whole = audit.ask
    monkeypatch.setattr(audit, "ask", lambda lock: whole(lock, asked))
    monkeypatch.setattr(audit, "ROOT", tmp_path)
    (tmp_path / "requirements").mkdir()
    lock = tmp_path / "requirements" / "cpu.txt"
    answer(json.dumps({"dependencies": packages}))
    with pytest.raises(ValueError, match="1 of 3 packages were not checked"):
        audit.check(["cpu"])
    monkeypatch.undo()
    answer("")
    with pytest.raises(ValueError, match=r"gave no answer about cpu\.txt, so nothing is known"):
        audit.ask(lock, asked)
    monkeypatch.setattr(audit, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install pip-audit"):
        audit.ask(lock)


def test_images_are_built_where_an_engine_is_installed(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert build.build_images("1.2").startswith("no images: neither docker nor podman")
    engine = tmp_path / "podman"
    engine.write_text(f"#!/bin/sh\necho $PWD $* >> {tmp_path}/log\n")
    engine.chmod(0o755)
    assert build.build_images("1.2") == "images of version 1.2: recsys, recsys-gpu"
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == f"{build.ROOT} build -q -f deploy/Dockerfile -t recsys:1.2 ."
    assert len(lines) == 2
    engine.write_text("#!/bin/sh\necho no space >&2; exit 1\n")
    with pytest.raises(ValueError, match="no space"):
        build.build_images("1.2")


def test_a_release_is_built_with_digests_and_a_lock_that_pip_holds_files_to(tmp_path, monkeypatch):
    files = tmp_path / "index"
    files.mkdir()
    info = "thing-1.0.dist-info"
    with zipfile.ZipFile(files / "thing-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: Thing\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(files))
    (tmp_path / "lock.txt").write_text("thing==1.0\n")
    lock = tmp_path / "hashed.txt"
    build.write_locks(tmp_path, tmp_path / "lock.txt")
    assert len(list(tmp_path.glob("requirements-py*-*.txt"))) == 6
    (tmp_path / "requirements-py313-aarch64.txt").rename(lock)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--dry-run", "--require-hashes", "-r"]
    subprocess.run([*pip, str(lock)], check=True)
    digest = hashlib.sha256((files / "thing-1.0-py3-none-any.whl").read_bytes()).hexdigest()
    lock.write_text(lock.read_text().replace(digest, 64 * "0"))
    assert subprocess.run([*pip, str(lock)], capture_output=True, check=False).returncode

    target = tmp_path / "release"
    build.build(target)
    build.write_sums(target)
    signer = tmp_path / "signer.py"
    signer.write_text("import pathlib, sys; pathlib.Path(sys.argv[2].split('=')[1]).touch()")
    for identity, word in ("", "not signed"), ("token", "signed"):
        monkeypatch.setenv("SIGSTORE_ID_TOKEN", identity)
        assert build.sign(target, (sys.executable, str(signer))).startswith(f"{word}: ")
        assert (target / "SHA256SUMS.sigstore.json").exists() == (word == "signed")
    assert (
        subprocess.run(["sha256sum", "-c", "SHA256SUMS"], cwd=target, check=False).returncode == 0
    )
    with tarfile.open(next(target.glob("*.tar.gz"))) as archive:
        tops = {name.split("/")[1] for name in archive.getnames() if name.count("/") > 1}
    assert {"recsys", "features", "pipelines", "serving", "requirements"} <= tops
    assert not tops & {"runs", "dist", ".venv", ".git"}
