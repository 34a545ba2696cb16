"""A uv.lock: what is taken of it, and what is refused by its name."""

import tomllib

import pytest

from cloche.jobs.installers.choice import read_installation
from cloche.jobs.project.pyproject import write_toml
from cloche.jobs.project.uv_lockfile import read_uv_lockfile
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode

A, B = "a" * 64, "b" * 64
REGISTRY = {"registry": "https://registry.test/simple"}
WHEEL = {
    "url": "https://registry.test/f/some_name-1.0%2Bcpu-py3-none-any.whl",
    "hash": f"sha256:{A}",
    "size": 7,
}
PACKAGE = {
    "name": "some-name",
    "version": "1.0+cpu",
    "source": REGISTRY,
    "sdist": {"url": "https://registry.test/f/some_name-1.0.tar.gz", "hash": f"sha256:{B}"},
    "wheels": [WHEEL],
}
OWN = {
    "name": "made",
    "version": "1.0",
    "source": {"editable": "."},
    "dependencies": [{"name": "some-name", "source": REGISTRY, "marker": "os_name == 'posix'"}],
}
MIRROR = "http://127.0.0.1:4873"


def lock(*packages, **fields):
    return write_toml({"version": 1, "revision": 3, "package": list(packages), **fields})


def refusal(data):
    with pytest.raises(JobRefusedError) as caught:
        read_uv_lockfile(data, mirror=MIRROR)
    return caught.value.reason


def test_what_is_installed_is_at_the_mirror_and_nowhere_else():
    found = read_uv_lockfile(lock(PACKAGE, OWN, options={"x": 1}), mirror=MIRROR)
    assert b"registry.test" not in found.text
    assert B not in found.text.decode()
    document = tomllib.loads(found.text.decode())
    package, own = document["package"]
    assert package["source"] == own["dependencies"][0]["source"] == {"registry": f"{MIRROR}/simple"}
    (wheel,) = package["wheels"]
    assert wheel["url"] == f"{MIRROR}/files/some-name/{A}/some_name-1.0%2Bcpu-py3-none-any.whl"
    assert own["source"] == {"editable": "."}
    assert "options" not in document
    (project,) = found.projects.values()
    assert (project.name, project.versions, project.hashes) == ("some-name", ("1.0+cpu",), {A})


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ({"git": "https://registry.test/x.git?rev=1#2"}, "a repository"),
        ({"url": "https://registry.test/x.whl"}, "a URL"),
        ({"path": "x.whl"}, "a file"),
        ({"directory": "../x"}, "a folder"),
        ({"editable": "packages/x"}, "workspaces"),
        ({"virtual": "packages/x"}, "workspaces"),
        ({"registry": "../wheels"}, "a folder of packages"),
        ({"registry": "file:///wheels"}, "a folder of packages"),
        ({}, "comes from"),
        (None, "comes from"),
    ],
)
def test_a_package_that_no_index_has_is_refused_by_its_name(source, word):
    package = {**PACKAGE, "source": source} if source is not None else {**PACKAGE, "source": 1}
    reason = refusal(lock(package))
    assert reason.code is ReasonCode.DEPENDENCY_REFUSED
    assert "some-name" in reason.message and word in reason.message
    own = {**OWN, "dependencies": [{"name": "some-name", "source": {"git": "x"}}]}
    assert refusal(lock(own)).code is ReasonCode.DEPENDENCY_REFUSED


def test_a_package_without_a_wheel_is_refused_by_its_name():
    reason = refusal(lock({**PACKAGE, "wheels": []}))
    assert reason.code is ReasonCode.DEPENDENCY_REFUSED
    assert "some-name==1.0+cpu has no wheel" in reason.message


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"version = 2",
        b"version = 1\npackage = 1",
        b"version = 1\npackage = [1]",
        b"a = " + b"[" * 5000,
        b"a = " + b"[" * 100 + b"]" * 100,
        b"a." * 100 + b"a = 1",
        b"a." * 10_000 + b"a = 1",
        b"x = ['\"', {" + b"a." * 10_000 + b"a = 1}, '\"']",
        b'x = ["""\n""", {' + b"a." * 10_000 + b"a = 1}]",
        b"[" + b"a." * 60 + b"a]\n" + b"".join(b"k%d.b = 1\n" % i for i in range(50_000)),
        b"#" * 9_000_000,
        lock({**PACKAGE, "name": "../x"}),
        lock({**PACKAGE, "name": "Some.Name"}),
        lock({**PACKAGE, "version": "1/../2"}),
        lock({**PACKAGE, "version": 1}),
        lock({**PACKAGE, "wheels": 1}),
        lock({**PACKAGE, "wheels": [1]}),
        lock({**PACKAGE, "wheels": [{**WHEEL, "hash": f"sha512:{A}"}]}),
        lock({**PACKAGE, "wheels": [{"url": WHEEL["url"]}]}),
        lock({**PACKAGE, "wheels": [{**WHEEL, "url": "https://registry.test/other-1-a-b-c.whl"}]}),
        lock({**PACKAGE, "wheels": [{**WHEEL, "filename": "some_name-1.0-py3-none-../x.whl"}]}),
    ],
)
def test_what_is_no_lockfile_is_refused(data):
    assert refusal(data).code is ReasonCode.LOCKFILE_INVALID


def read(pyproject, lockfile=None):
    files = {"pyproject.toml": pyproject.encode(), "uv.lock": lockfile or lock(PACKAGE, OWN)}
    return read_installation(files)


def test_uv_is_given_of_the_project_what_bears_on_the_lockfile():
    installation = read(
        """
        [build-system]
        requires = ["evil"]
        build-backend = "evil"
        backend-path = ["."]
        [project]
        name = "made"
        version = "1.0"
        scripts = {x = "x:y"}
        dependencies = ["some-name"]
        [dependency-groups]
        dev = ["pytest"]
        [tool.uv]
        default-groups = ["dev"]
        index-url = "https://registry.test"
        build-constraint-dependencies = ["x"]
        [[tool.uv.index]]
        url = "https://registry.test"
        """
    )
    assert tomllib.loads(installation.files["pyproject.toml"].decode()) == {
        "project": {"name": "made", "version": "1.0", "dependencies": ["some-name"]},
        "dependency-groups": {"dev": ["pytest"]},
        "build-system": {"requires": []},
        "tool": {"uv": {"default-groups": ["dev"]}},
    }
    assert any("tool.uv.index" in line for line in installation.ignored)


@pytest.mark.parametrize(
    ("pyproject", "code"),
    [
        ("[project]\ndynamic = ['dependencies']", ReasonCode.MANIFEST_INVALID),
        ("project = 1", ReasonCode.MANIFEST_INVALID),
        ("dependency-groups = 1", ReasonCode.MANIFEST_INVALID),
        ("tool = 1", ReasonCode.MANIFEST_INVALID),
        ("[tool]\nuv = 1", ReasonCode.MANIFEST_INVALID),
        ("x", ReasonCode.MANIFEST_INVALID),
        ("[tool.uv.sources]\nx = {git = 'x'}", ReasonCode.DEPENDENCY_REFUSED),
    ],
)
def test_a_pyproject_that_cannot_be_installed_is_refused(pyproject, code):
    with pytest.raises(JobRefusedError) as caught:
        read(pyproject)
    assert caught.value.reason.code is code


def test_a_lockfile_without_its_pyproject_is_refused():
    with pytest.raises(JobRefusedError) as caught:
        read_installation({"uv.lock": lock(PACKAGE)})
    assert caught.value.reason.code is ReasonCode.MANIFEST_MISSING


def test_toml_that_is_written_is_read_as_it_was():
    table = {"a b": [1, 2.5, True, 'x\x7f\x01\n"\\é😀'], "c": {"d": {"e": []}, "": ""}}
    assert tomllib.loads(write_toml(table).decode()) == table
