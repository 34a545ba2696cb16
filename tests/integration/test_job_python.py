"""Projects in Python: installed frozen from their lockfile, tested and built."""

import os
import shutil
import subprocess

import pytest

from cloche.environments.python_tools import uv_path
from cloche.model.job import ReasonCode, Verdict
from index_server import make_wheel, open_python_site
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

PYPROJECT = """
[build-system]
requires = ["backend"]
build-backend = "backend"

[project]
name = "made"
version = "1.0.0"
requires-python = ">=3.11"
"""
RUNS_TESTS = """
import made
print("=" * 20, "1 passed in 0.01s", "=" * 20)
"""
BUILDS = """
import backend, pathlib, sys
assert sys.argv[1:] == ["--no-isolation"]
pathlib.Path("dist").mkdir()
pathlib.Path("dist/made.txt").write_text(backend.__file__)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_python_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(scope="module")
def tools(site):
    """What stands in for pytest, build and a backend."""
    return [
        site.index.publish("pytest", "1.0", make_wheel("pytest", "1.0", {"pytest.py": RUNS_TESTS})),
        site.index.publish("build", "1.0", make_wheel("build", "1.0", {"build.py": BUILDS})),
        site.index.publish("backend", "1.0"),
    ]


def project(packages, **files):
    return {
        "pyproject.toml": PYPROJECT,
        "requirements.txt": "# locked\n" + "".join(each.line for each in packages),
        "src/made/__init__.py": "",
        **files,
    }


def look(line):
    return [{"name": "look", "shell": line}]


def test_a_project_is_installed_tested_and_built(site, tools):
    for tree in site.jobs.trees():  # of other tests, whose project may be the same
        shutil.rmtree(tree.parent)
    files = project(tools)
    first = site.jobs.run(files)
    assert first.verdict is Verdict.PASSED, first.message
    assert [step.name for step in first.result.steps] == ["install", "test", "build"]
    assert first.step("test").argv == ("python", "-m", "pytest")
    assert first.step("test").tests.passed == 1
    assert first.delivered("dist/made.txt").startswith(b"/workspace/.venv/lib/python3")
    assert first.result.audit["layer"]["packages_count"] == 3
    again = site.jobs.run(files)
    assert [again.step("install").cached, first.step("install").cached] == [True, False]
    for tree in site.jobs.trees():
        shutil.rmtree(tree.parent)
    anew = site.jobs.run(files)
    assert not anew.step("install").cached
    assert anew.result.audit["layer"]["sha256"] == first.result.audit["layer"]["sha256"]


def test_the_python_of_a_step_is_that_of_the_project(site, tools):
    ran = site.jobs.run(project(tools), steps=look("type -p python python3; python -c pass"))
    assert ran.verdict is Verdict.PASSED, ran.message
    assert ran.lines("look") == ["/workspace/.venv/bin/python", "/workspace/.venv/bin/python3"]


@pytest.mark.case("ins-07-lifecycle-scripts")
def test_no_code_of_a_package_or_of_the_project_runs_in_the_install(site):
    line = "import pathlib; pathlib.Path('/workspace/.venv/RAN').touch()"
    package = make_wheel(
        "sly", "1.0", {"sly.pth": f"{line}\n", "sly.py": line, "sitecustomize.py": line}
    )
    files = project([site.index.publish("sly", "1.0", package)], **{"setup.py": line})
    # The control: it does run where the project's Python starts.
    line = "ls -A .venv; [ ! -e .venv/RAN ]; python -c pass; [ -e .venv/RAN ]"
    ran = site.jobs.run(files, steps=look(line))
    assert ran.verdict is Verdict.PASSED, (ran.message, ran.lines("look"))


def test_a_script_of_a_package_is_found_and_does_not_stand_in_for_a_tool(site):
    scripts = {"ls": "#!python\nprint('sly')\n", "own": "#!python\nprint('own')\n"}
    package = site.index.publish("scripts", "1.0", make_wheel("scripts", "1.0", scripts=scripts))
    ran = site.jobs.run(project([package]), steps=look("own; ls -d src"))
    assert ran.lines("look") == ["own", "src"]


def test_a_local_version_is_installed_from_either_lockfile(site, tmp_path):
    local = site.index.publish("local", "1.0+cpu")
    line = look("python -c 'import local; print(local.version)'")
    ran = site.jobs.run(project([local]), steps=line)
    assert ran.lines("look") == ["1.0+cpu"], ran.message
    ran = site.jobs.run(uv_project(site, tmp_path, 'dependencies = ["local"]\n'), steps=line)
    assert ran.lines("look") == ["1.0+cpu"], ran.message


def test_an_index_that_has_html_pages_alone_will_do(site):
    site.index.speaks_json = False
    try:
        package = site.index.publish("old", "1.0")
    finally:
        site.index.speaks_json = True
    ran = site.jobs.run(project([package]), steps=look("python -c 'import old'"))
    assert ran.verdict is Verdict.PASSED, ran.message


def test_extras_markers_and_dependencies_are_those_that_are_locked(site):
    site.index.publish("deep", "1.0")
    more = make_wheel("more", "1.0", requires=["deep; extra == 'x'"])
    site.index.publish("more", "1.0", more)
    deep, more = site.index.publish("deep", "1.0"), site.index.publish("more", "1.0", more)
    elsewhere = f"absent==1 ; sys_platform == 'win32' \\\n    --hash=sha256:{'0' * 64}\n"
    text = more.line.replace("==", "[x]==") + deep.line + elsewhere
    files = {**project([]), "requirements.txt": text}
    ran = site.jobs.run(files, steps=look("python -c 'import more, deep'"))
    assert ran.verdict is Verdict.PASSED, ran.message
    files["requirements.txt"] = more.line.replace("==", "[x]==")
    ran = site.jobs.run(files, steps=look("true"))
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.LOCKFILE_OUTDATED), ran.lines(
        "install"
    )


def test_bytes_that_are_not_those_of_the_lockfile_do_not_come_in(site):
    told = "1" * 64
    lying = site.index.publish("lying", "1.0", told_sha256=told)
    ran = site.jobs.run(project([lying]), steps=look("true"))
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.INTEGRITY_MISMATCH)
    assert "lying-1.0-py3-none-any.whl" in ran.message


def test_a_version_with_other_files_than_the_lockfile_names_does_not_come_in(site):
    changed = site.index.publish("changed", "1.0")
    files = project([])
    files["requirements.txt"] = changed.line.replace(changed.sha256, "2" * 64)
    ran = site.jobs.run(files, steps=look("true"))
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.INTEGRITY_MISMATCH)
    files["requirements.txt"] = f"changed==2.0 --hash=sha256:{'2' * 64}"
    ran = site.jobs.run(files, steps=look("true"))
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.PACKAGE_UNAVAILABLE)
    files["requirements.txt"] = f"unheard-of==2.0 --hash=sha256:{'2' * 64}"
    ran = site.jobs.run(files, steps=look("true"))
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.PACKAGE_UNAVAILABLE)


def test_a_file_that_the_index_lists_and_does_not_have_fails_by_its_name(site):
    gone = site.index.publish("gone", "1.0")
    site.index.script(gone.path, *[lambda handler: handler.answer(404)] * 9)
    ran = site.jobs.run(project([gone]), steps=look("true"))
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.PACKAGE_UNAVAILABLE)
    assert "gone" in ran.message


def test_a_source_archive_is_not_built(site):
    source = site.index.publish("source", "1.0", b"anything", file_name="source-1.0.tar.gz")
    ran = site.jobs.run(project([source]), steps=look("true"))
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.DEPENDENCY_REFUSED)
    assert "source==1.0" in ran.message and "wheel" in ran.message


def test_a_wheel_for_another_platform_is_told_of(site):
    name = "foreign-1.0-cp311-cp311-win_amd64.whl"
    foreign = site.index.publish("foreign", "1.0", file_name=name)
    ran = site.jobs.run(project([foreign]), steps=look("true"))
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.DEPENDENCY_REFUSED), ran.lines(
        "install"
    )


def test_a_build_whose_tools_are_not_locked_is_rejected_before_the_start(site, tools):
    ran = site.jobs.run(project(tools[:1]))
    assert (ran.verdict, ran.why) == (Verdict.REJECTED, ReasonCode.LOCKFILE_OUTDATED)
    assert "backend, build" in ran.message
    assert site.jobs.run(project(tools[:1]), without=["build"]).verdict is Verdict.PASSED


def test_a_project_that_has_not_locked_pytest_has_no_tests(site, tools):
    ran = site.jobs.run(project(tools[1:]))
    assert (ran.verdict, ran.why) == (Verdict.NO_TESTS, ReasonCode.NO_TESTS)


def test_a_project_that_depends_on_nothing_has_a_python(site):
    files = {"pyproject.toml": PYPROJECT, "src/made/__init__.py": ""}
    ran = site.jobs.run(files, steps=look("python -c 'import made'"))
    assert ran.verdict is Verdict.PASSED, ran.message


# uv.lock


def uv_project(site, folder, fields):
    """A project whose uv.lock uv itself has made."""
    files = {
        "pyproject.toml": PYPROJECT + fields,
        "src/made/__init__.py": "version = '1.0.0'",
    }
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    subprocess.run(
        [uv_path(site.jobs.cache_folder), "lock", "--quiet", "--no-build"],
        cwd=folder,
        env={
            "PATH": os.environ["PATH"],
            "UV_NO_CONFIG": "1",
            "UV_DEFAULT_INDEX": site.index.url,
            "UV_CACHE_DIR": str(folder / ".uv-cache"),
            "UV_PYTHON_DOWNLOADS": "never",
        },
        check=True,
        timeout=30,
    )
    return {**files, "uv.lock": (folder / "uv.lock").read_text()}


GROUPS = 'dependencies = ["deep"]\n[dependency-groups]\ndev = ["pytest", "build", "backend"]\n'


def test_a_lockfile_of_uv_is_installed_tested_and_built(site, tools, tmp_path):
    site.index.publish("deep", "1.0")
    files = uv_project(site, tmp_path, GROUPS)
    first = site.jobs.run(files)
    assert first.verdict is Verdict.PASSED, (first.message, first.lines("install"))
    assert first.paths == ["dist/made.txt"]
    assert first.step("install").argv[:3] == ("/usr/bin/uv", "sync", "--locked")
    for tree in site.jobs.trees():
        shutil.rmtree(tree.parent)
    anew = site.jobs.run(files)
    assert not anew.step("install").cached
    assert anew.result.audit["layer"]["sha256"] == first.result.audit["layer"]["sha256"]


def test_a_project_whose_version_its_build_finds_out_is_installed(site, tmp_path):
    site.index.publish("deep", "1.0")
    files = uv_project(site, tmp_path, 'dependencies = ["deep"]\n')
    stated = 'version = "1.0.0"'
    files["pyproject.toml"] = files["pyproject.toml"].replace(stated, 'dynamic = ["version"]')
    files["uv.lock"] = files["uv.lock"].replace(f"{stated}\n", "")
    ran = site.jobs.run(files, steps=look("python -c 'import deep, made'; uv run python -V"))
    assert ran.verdict is Verdict.PASSED, (ran.message, ran.lines("install"))


@pytest.mark.case("ins-02-lockfile-mismatch")
def test_a_lockfile_of_uv_that_does_not_match_fails_as_such(site, tools, tmp_path):
    site.index.publish("deep", "1.0")
    files = uv_project(site, tmp_path, GROUPS)
    files["pyproject.toml"] = files["pyproject.toml"].replace('"deep"', '"deep>=2"')
    ran = site.jobs.run(files)
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.LOCKFILE_OUTDATED), ran.lines(
        "install"
    )


def test_a_hash_in_a_lockfile_of_uv_is_kept_to(site, tmp_path):
    deep = site.index.publish("deep", "1.0")
    files = uv_project(site, tmp_path, 'dependencies = ["deep"]\n')
    files["uv.lock"] = files["uv.lock"].replace(deep.sha256, "3" * 64)
    ran = site.jobs.run(files, steps=look("true"))
    assert ran.verdict is Verdict.FAILED
    assert ran.why in (ReasonCode.INTEGRITY_MISMATCH, ReasonCode.PACKAGE_UNAVAILABLE)
