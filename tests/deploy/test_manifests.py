"""Image, compose, systemd, Kubernetes and proxy: they fit the server, its settings, each other."""

import configparser
import re
import shutil
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipelines.inputs.kafka_events import SETTINGS
from serving.security import is_loopback
from serving.security.access import Access
from serving.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
KUBERNETES = DEPLOY / "kubernetes"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
NGINX = (DEPLOY / "nginx" / "recsys.conf").read_text(encoding="utf-8")
UNIT = (DEPLOY / "systemd" / "recsys.service").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text(encoding="utf-8"))
API = COMPOSE["services"]["api"]
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and path.suffix != ".json")
GUIDES = [ROOT / "docs" / f"{name}.md" for name in ("operations", "alerts", "online-store")]
OF_COMPOSE = {"RECSYS_BUNDLES_DIR"}
"""Variables that are compose's own."""
USER_KEYS = {"RECSYS_USER_KEY", "RECSYS_USER_KEY_FILE"}
"""Variables of every command that hashes users, servers among them."""
OF_EVERY_PROCESS = {"RECSYS_KERNEL_CACHE"}


def manifest(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((KUBERNETES / f"{name}.yaml").read_text(encoding="utf-8")))


POD = manifest("deployment")["spec"]["template"]
CONTAINER = POD["spec"]["containers"][0]
UNIT_ENVIRONMENT = dict(re.findall(r"^Environment=(\w+)=(.*)$", UNIT, re.MULTILINE))
IMAGE_ENVIRONMENT = dict(
    re.findall(r"(RECSYS_\w+)=(\S+)", re.sub(r"^#.*", "", DOCKERFILE, flags=re.MULTILINE))
)
POD_ENVIRONMENT = {one["name"]: one["value"] for one in CONTAINER["env"]}


def ran(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a tool; without it the test is reported as skipped, by the tool's name."""
    if (program := shutil.which(tool)) is None:
        pytest.skip(f"needs {tool}")
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=False)


def stop_seconds(settings: Settings) -> float:
    """How long a server may take to end after SIGTERM."""
    return settings.drain_seconds + settings.drain_notice_seconds


@pytest.mark.parametrize("path", [*FILES, *GUIDES], ids=lambda p: p.name)
def test_every_setting_named_is_one(path: Path) -> None:
    known = {PREFIX + field.name.upper() for field in fields(Settings)} | OF_COMPOSE
    known |= USER_KEYS | OF_EVERY_PROCESS
    named = set(re.findall(r"\bRECSYS_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
    assert {name for name in named - known if not name.startswith(SETTINGS)} == set()


@pytest.mark.parametrize("given", [UNIT_ENVIRONMENT, IMAGE_ENVIRONMENT, POD_ENVIRONMENT])
def test_the_settings_given_are_read(given: dict[str, str]) -> None:
    settings = Settings.from_environment(given)
    assert settings.port == 8000
    assert not settings.expose_users
    assert str(settings.bundles) == given["RECSYS_BUNDLES"]


def test_nobody_is_served_beyond_the_machine_without_a_key() -> None:
    with pytest.raises(ValueError, match="no keys are set"):
        Access(Settings.from_environment(IMAGE_ENVIRONMENT))
    assert is_loopback(UNIT_ENVIRONMENT["RECSYS_HOST"])
    # Ports of compose are the machine's own: see below.
    assert API["environment"]["RECSYS_ALLOW_ANONYMOUS"] == "true"
    assert API["environment"]["RECSYS_KEYS"] is None
    (keys,) = [volume["secret"] for volume in POD["spec"]["volumes"] if "secret" in volume]
    mounts = {mount["name"]: mount["mountPath"] for mount in CONTAINER["volumeMounts"]}
    assert POD_ENVIRONMENT["RECSYS_KEYS"] == f"{mounts['keys']}/keys.toml"
    assert keys == {"secretName": "recsys-keys"}


def test_compose_mounts_bundles_read_only_and_waits_for_the_drain() -> None:
    bundles, keys = API["volumes"]
    assert keys.endswith(":ro")
    assert bundles.endswith(f":{IMAGE_ENVIRONMENT['RECSYS_BUNDLES']}:ro")
    assert API["read_only"]
    assert (DEPLOY / API["build"]["context"] / API["build"]["dockerfile"]).exists()
    grace = int(API["stop_grace_period"].removesuffix("s"))
    assert grace > stop_seconds(Settings.from_environment(IMAGE_ENVIRONMENT))
    for name, service in COMPOSE["services"].items():
        assert service["cap_drop"] == ["ALL"], name
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", [])), name
        assert re.fullmatch(r"[\w./-]+:[\w.-]*\w", service["image"]), name
        assert not service["image"].endswith(":latest"), name
        for volume in service.get("volumes", []):
            if volume.startswith("./") and volume != keys:
                assert (DEPLOY / volume.split(":")[0]).exists(), volume


def test_pods_have_no_rights_and_time_to_drain() -> None:
    rights = CONTAINER["securityContext"]
    assert rights == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert POD["spec"]["securityContext"]["runAsNonRoot"]
    assert f"USER {POD['spec']['securityContext']['runAsUser']}:" in DOCKERFILE
    mounts = {mount["name"]: mount for mount in CONTAINER["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in POD["spec"]["volumes"]}
    assert mounts["bundles"]["mountPath"] == POD_ENVIRONMENT["RECSYS_BUNDLES"]
    assert mounts["bundles"]["readOnly"]
    pause = int(CONTAINER["lifecycle"]["preStop"]["exec"]["command"][1])
    needed = pause + stop_seconds(Settings.from_environment(POD_ENVIRONMENT))
    assert POD["spec"]["terminationGracePeriodSeconds"] > needed


def test_kustomize_builds_every_manifest() -> None:
    listed = manifest("kustomization")["resources"]
    kinds = [manifest(path.removesuffix(".yaml"))["kind"] for path in listed]
    done = ran("kubectl", "kustomize", str(KUBERNETES))
    assert done.returncode == 0, done.stderr
    built = [document["kind"] for document in yaml.safe_load_all(done.stdout)]
    assert sorted(built) == sorted(kinds)


def service_of_the_unit() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT)
    return unit["Service"]


def test_systemd_verifies_the_unit(tmp_path: Path) -> None:
    # It looks for the program, which is not installed here.
    found = UNIT.replace(service_of_the_unit()["ExecStart"].split()[0], sys.executable)
    (tmp_path / "recsys.service").write_text(found)
    done = ran("systemd-analyze", "verify", "--man=no", str(tmp_path / "recsys.service"))
    assert (done.returncode, done.stderr) == (0, "")


def test_the_proxy_hides_private_routes_and_closes_first() -> None:
    rules = dict(re.findall(r"location (\S+) \{ return (\d+); \}", NGINX))
    assert rules == {"/v1/users": "404", "/": "404"}
    assert "location /v1/ {" in NGINX
    settings = Settings()
    (idle,) = re.findall(r"keepalive \d+;.*?keepalive_timeout (\d+)s;", NGINX, re.DOTALL)
    assert int(idle) < settings.keep_alive_seconds
    (body,) = re.findall(r"client_max_body_size (\d+)m;", NGINX)
    assert int(body) << 20 == settings.max_body_bytes


def test_nginx_reads_the_proxys_configuration(tmp_path: Path) -> None:
    written = " ".join(
        f"{kind}_temp_path {tmp_path}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    include = f"http {{ access_log off; {written} include {DEPLOY}/nginx/recsys.conf; }}"
    head = f"pid {tmp_path}/pid; error_log stderr; events {{}}"
    (tmp_path / "nginx.conf").write_text(f"{head} {include}")
    done = ran("nginx", "-t", "-c", str(tmp_path / "nginx.conf"))
    assert done.returncode == 0, done.stderr
