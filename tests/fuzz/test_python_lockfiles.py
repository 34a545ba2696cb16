"""Whatever stands in a Python project's files or an index's page, it is read or refused."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cloche.egress.simple_page import read_page, write_page
from cloche.jobs.installers.choice import read_installation
from cloche.jobs.project.pyproject import read_toml, write_toml
from cloche.jobs.project.requirements import read_requirements
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
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
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
