"""What stands around the code: workflows, hooks, forms and guides parse and name what exists."""

import os
import pathlib
import re
import subprocess
import tomllib

import pytest
import yaml
from quality.__main__ import COMMANDS

ROOT = pathlib.Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))
GUIDES = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", ".pre-commit-config.yaml")]
GUIDES.append(ROOT / ".github" / "PULL_REQUEST_TEMPLATE.md")
ROOMS = r"(?:\.ci|\.github|benchmarks|docs|jaxpgs|notebooks|tests)/[\w./-]*\w"


def short(path):
    return path.name


def missing(text):
    """What a text names of the project that is not there: files, modules, extras, commands."""
    paths = re.findall(rf"(?<![\w./]){ROOMS}|\b[\w-]+\.(?:toml|md|cff)\b", text)
    modules = re.findall(r"python -m ((?:benchmarks|jaxpgs)[\w.]*\w|benchmarks|jaxpgs)", text)
    files = [path for path in paths if "NAME" not in path and not (ROOT / path).exists()]
    files += [
        name for name in modules
        if not any((ROOT / name.replace(".", "/")).with_suffix(end).exists() for end in ("", ".py"))
    ]  # fmt: skip
    extras = {name for found in re.findall(r"\.\[([\w,]+)\]", text) for name in found.split(",")}
    commands = set(re.findall(r"python tests/quality (\w+)", text))
    return [*files, *(extras - set(PROJECT["optional-dependencies"])), *(commands - set(COMMANDS))]


def test_what_is_missing_is_found():
    named = "python -m benchmarks.nothing && pytest tests/test_no.py; see NONE.md, `.[test,no]`"
    assert missing(f"{named}, python tests/quality nought") == [
        "tests/test_no.py", "NONE.md", "benchmarks.nothing", "no", "nought",
    ]  # fmt: skip
    assert not missing("python -m benchmarks.stale && .ci/run; docs/play.md and `.[test,docs]`")


@pytest.mark.parametrize("path", WORKFLOWS, ids=short)
def test_a_workflow_parses_and_names_what_exists(path):
    text = path.read_text()
    workflow = yaml.safe_load(text)
    assert workflow[True] and workflow["permissions"] == {"contents": "read"}  # `on` reads as True
    for job in workflow["jobs"].values():
        assert job["runs-on"] and job["steps"]
        assert set(job.get("needs", "").split()) <= set(workflow["jobs"])
        for step in job["steps"]:
            assert ("run" in step) != ("uses" in step)
            assert re.fullmatch(r"[\w-]+/[\w-]+@[\w./-]+", step.get("uses", "a/b@v1"))
    assert not missing(text)


def test_workflows_test_what_is_declared():
    versions = yaml.safe_load(WORKFLOWS[0].read_text())["jobs"]["tests"]["strategy"]["matrix"]
    lowest = PROJECT["requires-python"].removeprefix(">=")
    assert versions["python"][0] == lowest, "the lowest Python of pyproject.toml is tested"
    classifiers = {f"Programming Language :: Python :: {version}" for version in versions["python"]}
    assert classifiers <= set(PROJECT["classifiers"])
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111, "ci.yml runs it"
    readme = (ROOT / "README.md").read_text()
    for name in re.findall(r"<!-- (\w+) -->", WORKFLOWS[0].read_text()):
        assert f"<!-- {name} -->\n```bash\n" in readme


def test_only_the_version_may_be_the_tag(monkeypatch):
    release = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    (script,) = (
        re.search(r"<<'END'\n(.*)END", step["run"], re.S).group(1)
        for step in release["jobs"]["build"]["steps"]
        if "END" in step.get("run", "")
    )
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("GITHUB_REF_NAME", f"v{PROJECT['version']}")
    exec(script, {})
    monkeypatch.setenv("GITHUB_REF_NAME", f"v{PROJECT['version']}.1")
    with pytest.raises(AssertionError, match=PROJECT["version"]):
        exec(script, {})


def test_the_notes_of_a_release_are_its_part_of_the_changelog(tmp_path):
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    (script,) = re.findall(r"(awk .*?notes\.txt)\n", text, re.S)
    changes = "# Changelog\n\n## [0.2.0] - 2000-01-01\n\n- new\n\n## [0.1.0] - 1999-01-01\n- old\n"
    (tmp_path / "CHANGELOG.md").write_text(changes)
    environment = os.environ | {"GITHUB_REF_NAME": "v0.1.0"}
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, env=environment, check=True)
    assert (tmp_path / "notes.txt").read_text() == "- old\n"


@pytest.mark.parametrize("path", FORMS, ids=short)
def test_an_issue_form_parses(path):
    form = yaml.safe_load(path.read_text())
    assert form["name"] and form["description"]
    names = [part["id"] for part in form["body"]]
    assert len(names) == len(set(names))
    assert all(part["type"] in ("input", "textarea") for part in form["body"])
    assert any(part.get("validations", {}).get("required") for part in form["body"])


@pytest.mark.parametrize("path", GUIDES, ids=short)
def test_a_guide_names_what_exists(path):
    text = path.read_text()
    assert not missing(text)
    for link in re.findall(r"\]\((?!http|#)([^)#]+)", text):
        assert (path.parent / link).exists(), link


def test_hooks_run_what_the_tests_run():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    command = (ROOT / "README.md").read_text()
    for hook in repository["hooks"]:
        assert f".venv/bin/{hook['entry'].removesuffix(' --fix')} " in command


def test_the_version_is_said_once_more():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert citation["authors"] == [{"name": "The jaxpgs authors"}]


def test_the_changelog_keeps_its_form():
    text = (ROOT / "CHANGELOG.md").read_text()
    versions = re.findall(r"^## (.*)$", text, re.M)
    assert versions[0] == "[Unreleased]"
    assert all(re.fullmatch(r"\[\d+\.\d+\.\d+\] - \d{4}-\d\d-\d\d", name) for name in versions[1:])
    sections = re.findall(r"^### (.*)$", text, re.M)
    assert set(sections) <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}


def test_text_has_the_same_encoding_on_every_machine():
    calls = re.compile(r"(?:read_text|write_text|(?<!os)\.open)\((?!.*utf-8).*")
    for path in sorted((ROOT / "jaxpgs").rglob("*.py")):
        assert not calls.findall(path.read_text("utf-8")), path
