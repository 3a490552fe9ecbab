"""What a release needs for its provenance, as far as it can be seen before one.

That the signed statements are there can only be checked on a release itself:
`gh attestation verify`, the page of the project on PyPI, `npm audit signatures`.
"""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # comes with langchain

import sandgate

_ROOT = Path(__file__).parents[3]
_WORKFLOWS = _ROOT / ".github" / "workflows"
_PROJECT = tomllib.loads((_ROOT / "clients/python/pyproject.toml").read_text())["project"]
_PACKAGE: dict[str, Any] = json.loads((_ROOT / "clients/ts/package.json").read_text())
_RELEASE: dict[str, Any] = yaml.safe_load((_WORKFLOWS / "release.yml").read_text())
_JOBS: dict[str, Any] = _RELEASE["jobs"]


def _commands(job: str) -> str:
    return "\n".join(step.get("run", "") for step in _JOBS[job]["steps"])


def _used(job: str, action: str) -> dict[str, Any]:
    """Return what a job gives to an action that it uses once."""
    (step,) = (s for s in _JOBS[job]["steps"] if s.get("uses", "").startswith(f"{action}@"))
    with_: dict[str, Any] = step.get("with", {})
    return with_


def test_s2_9_every_file_of_a_release_is_attested_where_it_was_built() -> None:
    assert _used("build", "actions/attest-build-provenance")["subject-checksums"].endswith("/SHA256SUMS")
    assert _JOBS["build"]["permissions"] == {
        "contents": "read",
        "id-token": "write",
        "attestations": "write",
    }
    assert "make release" in _commands("build")
    # The sums are of all files, and made last.
    script = (_ROOT / "scripts" / "release.sh").read_text()
    assert "sha256sum -- * >SHA256SUMS" in script.strip().splitlines()[-2]


@pytest.mark.parametrize("registry", ["pypi", "npm"])
def test_s2_9_registries_trust_the_workflow_and_there_is_no_token_to_leak(registry: str) -> None:
    job = _JOBS[registry]
    # Trusted publishing: the identity of this job in this environment, and nothing else.
    assert job["permissions"] == {"id-token": "write"}
    assert job["environment"] == registry
    assert job["needs"] == "build"
    # It publishes what was attested, and builds nothing of its own.
    assert _used(registry, "actions/download-artifact")["name"] == "release"
    assert "make" not in _commands(registry).split()


def test_s2_9_no_workflow_knows_a_secret() -> None:
    for workflow in _WORKFLOWS.glob("*.yml"):
        text = workflow.read_text()
        assert "secrets." not in text, workflow
        assert not re.search(r"(?i)\b(password|api[-_]?token|_authToken|NODE_AUTH_TOKEN)\b", text), workflow
    assert _RELEASE["permissions"] == {}


def test_s2_9_both_registries_show_where_the_package_comes_from() -> None:
    assert _used("pypi", "pypa/gh-action-pypi-publish")["attestations"] is True
    assert "npm publish --provenance --access public ./release/" in _commands("npm")
    # Trusted publishing needs npm 11.5, which comes with Node 24.
    assert int(_used("npm", "actions/setup-node")["node-version"]) >= 24
    # npm refuses provenance where the package names another repository than the workflow's.
    home = _PROJECT["urls"]["Homepage"]
    assert _PACKAGE["repository"] == {"type": "git", "url": f"git+{home}.git", "directory": "clients/ts"}
    assert _PACKAGE["homepage"] == home
    assert "private" not in _PACKAGE


def test_s2_9_a_release_has_one_version() -> None:
    assert _PROJECT["version"] == _PACKAGE["version"] == sandgate.__version__
    lock = json.loads((_ROOT / "clients/ts/package-lock.json").read_text())
    assert lock["version"] == lock["packages"][""]["version"] == _PACKAGE["version"]
    assert re.search(r"\$version =~ \^v\[0-9\]", (_ROOT / "scripts" / "release.sh").read_text())


def test_a_tags_name_reaches_no_shell_as_code() -> None:
    for workflow in _WORKFLOWS.glob("*.yml"):
        for job in yaml.safe_load(workflow.read_text())["jobs"].values():
            for step in job.get("steps", []):
                assert "${{" not in step.get("run", ""), step


def test_a_release_runs_every_check_first() -> None:
    assert _JOBS["ci"]["uses"] == "./.github/workflows/ci.yml"
    assert _JOBS["build"]["needs"] == "ci"


@pytest.mark.parametrize("workflow", sorted(path.name for path in _WORKFLOWS.glob("*.yml")))
def test_actions_are_pinned_by_commit(workflow: str) -> None:
    jobs = yaml.safe_load((_WORKFLOWS / workflow).read_text())["jobs"].values()
    used = [step["uses"] for job in jobs for step in job.get("steps", []) if "uses" in step]
    for action in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}", action), action
