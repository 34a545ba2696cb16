"""Whatever stands in a Python project's files or an index's page, it is read or refused."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.egress.simple_page import read_page, write_page
from cloche.jobs.installers.choice import read_installation
from cloche.jobs.project.pyproject import read_toml, write_toml
from cloche.jobs.project.requirements import read_requirements
from cloche.jobs.project.uv_lockfile import read_uv_lockfile
from cloche.jobs.refusal import JobRefusedError
from cloche.settings.address import Address

HASH = b"--hash=sha256:" + b"a" * 64
shrapnel = st.lists(
    st.sampled_from(
        [b"a", b"==", b"1.0", HASH, b" ", b"\n", b"\\\n", b"#", b";", b"os_name == 'x'", b"[x]",
         b"-e", b"--", b"-", b"@", b"https://", b"\xff", b"\0", b"\x1b[2J", b"\x85", b"\t",
         b"\xe2\x80\xa8", b"\r", b"${X}", b"*", b",", b"[", b"]"]
    ),
    max_size=30,
).map(b"".join)  # fmt: skip
toml_shrapnel = st.lists(
    st.sampled_from(
        [b"[project]\n", b"[[package]]\n", b"name = ", b"version = 1\n", b"'x'\n", b'"\\u0000"\n',
         b"{",
         b"}", b"[", b"]", b"source = ", b"{ registry = 'https://x.test' }\n", b"wheels = ", b"a.b",
         b"=", b"1979-05-27T07:32:00Z\n", b"inf\n", b"nan\n", b"'''", b'"""', b"\xff", b"#", b"\n",
         b"[tool.uv]\n", b"[tool.uv.sources]\n", b"[build-system]\n", b"requires = ['a>1']\n"]
    ),
    max_size=20,
).map(b"".join)  # fmt: skip
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(shrapnel)
def test_requirements_are_read_or_refused_and_read_again_as_they_were(data: bytes) -> None:
    try:
        found = read_requirements(data)
    except JobRefusedError as refusal:
        assert refusal.reason.message.isprintable()
        return
    text = "".join(f"{each}\n" for each in found)
    assert read_requirements(text.encode()) == found


@given(toml_shrapnel, toml_shrapnel)
def test_a_project_of_uv_is_read_or_refused(lock: bytes, pyproject: bytes) -> None:
    files = {"uv.lock": b"version = 1\n" + lock, "pyproject.toml": pyproject}
    try:
        installation = read_installation(files)
    except JobRefusedError:
        return
    assert installation is not None
    for text in installation.files.values():
        assert read_toml(text, limit_bytes=1_000_000) is not None


# A uv.lock that is right but for some of its values.
MIRROR = "http://127.0.0.1:4873"
SHA256 = "a" * 64
odd = st.sampled_from(
    ["", "..", "x", "http://[", "http://a\u2100b", "\x7f", "\u2028", 2**63, True, [], {}, [[]]]
) | values.filter(lambda value: "None" not in repr(value))  # fmt: skip
places = st.sampled_from(
    ["https://x.test/a-1.0-py3-none-any.whl", "https://x.test/..%2fa-1.0-py3-none-any.whl",
     "https://x.test/a-1.0-py3-none-any.whl%0a", "a-1.0-py3-none-any.whl", "b-1.0-py3-none-any.whl"]
)  # fmt: skip
WHEEL = {"url": "https://x.test/a-1.0-py3-none-any.whl", "hash": f"sha256:{SHA256}"}
REGISTRY = {"registry": "https://x.test/simple"}
GOOD = {"name": "a", "version": "1.0", "source": REGISTRY, "wheels": [WHEEL]}
OWN = {"name": "b", "source": {"editable": "."}, "dependencies": [{"name": "a"}]}
sources = st.sampled_from(
    [{"registry": "http://["}, {"virtual": ".."}, {"git": "https://x.test/a"}, {"path": "../a"}]
)
dependencies = st.fixed_dictionaries({"name": odd}, optional={"source": sources | odd})
wheels = st.tuples(st.sampled_from(["url", "hash", "filename", "size"]), places | odd).map(
    lambda changed: {**WHEEL, changed[0]: changed[1]}
)
fields = st.sampled_from(["name", "version", "source", "wheels", "dependencies", "sdist"])
values_of_fields = sources | st.lists(wheels, max_size=2) | st.lists(dependencies) | odd
packages = st.tuples(
    st.sampled_from([GOOD, OWN]), st.dictionaries(fields, values_of_fields, max_size=1)
).map(lambda pair: {**pair[0], **pair[1]})
locks = st.fixed_dictionaries(
    {"version": st.just(1), "package": st.lists(packages, max_size=3) | odd},
    optional={"options": odd, "manifest": odd},
).map(write_toml)


@given(locks | toml_shrapnel.map(b"version = 1\n".__add__) | st.binary())
def test_any_bytes_are_a_lockfile_of_uv_that_holds_or_a_refusal(data: bytes) -> None:
    try:
        found = read_uv_lockfile(data, mirror=MIRROR)
    except JobRefusedError as refusal:
        assert refusal.reason.message.isprintable() and len(refusal.reason.message) < 2000
        return
    for name, project in found.projects.items():
        assert project.name == name and project.hashes == {SHA256}
    for package in read_toml(found.text, limit_bytes=10_000_000).get("package", []):
        for wheel in package.get("wheels", []):
            assert wheel["url"].startswith(f"{MIRROR}/files/{package['name']}/{SHA256}/")
    again = read_uv_lockfile(found.text, mirror=MIRROR)
    assert again.projects.keys() == found.projects.keys()


HEAD = b"version = 1\n"
PACKAGE = HEAD + b'[[package]]\nname = "a"\nversion = "1.0"\n'


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"x = " + b"[" * 1_000_000,
        HEAD + b"x = " + b"{a=" * 1_000_000,
        HEAD + b"a." * 1_000_000 + b"a = 1",
        HEAD + b"x = 0x" + b"f" * 1_000_000,
        HEAD + b"x = " + b"9" * 1_000_000,
        HEAD + b'[[package]]\nname = "a"\n' * 20_000,
        PACKAGE + b'source = { registry = "' + b"http://[" * 100_000 + b'" }',
        PACKAGE + b'source = { registry = "http://x" }\nwheels = [' + b"{}," * 200_000 + b"]",
    ],
    ids=["lists", "tables", "parts", "hexadecimal", "decimal", "packages", "source", "wheels"],
)
def test_a_lockfile_of_uv_made_to_take_long_is_refused_soon(data: bytes) -> None:
    begun_s = time.process_time()
    with pytest.raises(JobRefusedError):
        read_uv_lockfile(data, mirror=MIRROR)
    assert time.process_time() - begun_s < 5


@given(st.dictionaries(st.text(max_size=8), values.filter(lambda value: "None" not in repr(value))))
def test_toml_that_is_written_is_read_as_it_was(table: dict[str, Any]) -> None:
    assert repr(read_toml(write_toml(table), limit_bytes=1_000_000)) == repr(table)


@given(
    values | st.fixed_dictionaries({"files": st.lists(values, max_size=3)}), st.binary(max_size=50)
)
def test_a_page_is_read_or_refused(told: Any, raw: bytes) -> None:
    base = Address.parse("https://x.test/simple/x/")
    for document in (json.dumps(told).encode(), raw, b"<a href=" + raw + b">", b"{" + raw):
        try:
            files = read_page(document, base)
        except ValueError:
            continue
        assert write_page("x", files, "http://127.0.0.1:1")
