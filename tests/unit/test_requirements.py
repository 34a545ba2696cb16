"""A requirements.txt as a lockfile: what is taken of it, and what is refused by its name."""

import pytest

from cloche.jobs.installers.choice import read_installation
from cloche.jobs.project.requirements import lock_projects, read_requirements
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import ReasonCode

A, B = "a" * 64, "b" * 64
HASH = f"--hash=sha256:{A}"


def refusal(text):
    with pytest.raises(JobRefusedError) as caught:
        read_requirements(text if isinstance(text, bytes) else text.encode())
    return caught.value.reason


def test_comments_continuations_markers_and_extras_are_read():
    text = f"""\ufeff# made by a tool \\
Typing_Extensions==4.15.0 \\
    --hash=sha256:{A} \\
    --hash=sha256:{B.upper()}  # via x

 uvicorn [Standard,  http.tools] == 0.30 ; python_version < "3.13" and os_name=='posix' {HASH}
torch==2.0+cpu {HASH} --hash=sha512:ff
"""
    first, second, third = read_requirements(text.encode())
    assert (first.name, first.version, first.hashes) == ("typing-extensions", "4.15.0", (A, B))
    assert (second.name, second.extras) == ("uvicorn", ("standard", "http-tools"))
    assert second.marker == "python_version < \"3.13\" and os_name=='posix'"
    assert str(third) == f"torch==2.0+cpu {HASH}"
    assert read_requirements(str(second).encode()) == (second,)


def test_lines_of_one_name_for_several_environments_add_up():
    text = f"a==1 ; os_name == 'nt' {HASH}\nA==2 ; os_name != 'nt' --hash=sha256:{B}\n"
    (project,) = lock_projects(read_requirements(text.encode())).values()
    assert (project.versions, project.hashes) == (("1", "2"), {A, B})


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("-e .", "-e ."),
        ("-e.", "-e."),
        ("--editable=.", "--editable"),
        (f"a @ https://registry.test/a.whl {HASH}", "https://registry.test/a.whl"),
        ("git+https://registry.test/a.git", "git+https"),
        ("./a", "./a"),
        ("a.whl/", "a.whl/"),
        ("https://registry.test/a.whl", "https:"),
    ],
)
def test_what_is_on_no_index_is_refused_by_its_name(line, word):
    reason = refusal(f"b==1 {HASH}\n{line}\n")
    assert reason.code is ReasonCode.DEPENDENCY_REFUSED
    assert word in reason.message and "line 2" in reason.message


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("-i https://registry.test", "-i"),
        ("-r other.txt", "-r"),
        ("-c constraints.txt", "-c"),
        ("--no-binary :all:", "--no-binary"),
        ("--pre", "--pre"),
        (f"a==1 {HASH} --config-settings=x", "--config-settings=x"),
        ("a==1", "a==1 has no sha256"),
        ("a==1 --hash=md5:00", "a==1 has no sha256"),
        ("a==1 --hash=sha256:00", "is no sha256"),
        (f"a==1 {HASH} stray", "'stray'"),
        (f"a>=1 {HASH}", "pins no version"),
        (f"a {HASH}", "a pins no version"),
        (f"a==1.* {HASH}", "no exact version"),
        (f"a===1 {HASH}", "no exact version"),
        (f"a==1,<2 {HASH}", "no exact version"),
        (f"a=={'${VERSION}'} {HASH}", "no exact version"),
        (f"a[x==1 {HASH}", "no requirement"),
        (f"a==1 ; `x` {HASH}", "no environment marker"),
        (b"\xff", "UTF-8"),
    ],
)
def test_what_is_no_lock_is_refused_by_its_name(line, word):
    reason = refusal(line)
    assert reason.code is ReasonCode.LOCKFILE_INVALID
    assert word in reason.message


@pytest.mark.parametrize("option", ["index-url", "extra-index-url", "find-links", "trusted-host"])
def test_where_packages_come_from_is_not_for_the_project_to_say(option):
    for line in (f"--{option} https://registry.test", f"--{option}=https://registry.test"):
        reason = refusal(f"a==1 {HASH}\n{line}")
        assert reason.code is ReasonCode.LOCKFILE_INVALID
        assert f"line 2: the option '--{option}'" in reason.message


def test_a_continued_comment_does_not_swallow_the_line_behind_it():
    assert [each.name for each in read_requirements(f"# x \\\na==1 {HASH}".encode())] == ["a"]


def test_a_hostile_name_does_not_reach_the_message_as_it_is():
    assert "\x1b" not in refusal(f"a==\x1b[2J {HASH}").message


def test_the_box_is_given_nothing_but_the_lines_themselves():
    files = {
        "requirements.txt": f"b==1 {HASH} # c\na==1 {HASH}\n".encode(),
        "pyproject.toml": b"[project]\nname = 'x'\n",
        "setup.py": b"boom",
        "pip.conf": b"x",
    }
    installation = read_installation(files)
    assert installation.files == {"requirements.txt": f"a==1 {HASH}\nb==1 {HASH}\n".encode()}
    assert (installation.origin, installation.folders) == ("pypi", (".venv",))


def test_the_mirror_has_the_pages_and_the_hashes_of_the_lockfile_alone():
    files = {"requirements.txt": f"a==1 {HASH}\nb==1 --hash=sha256:{B}\n".encode()}
    items = read_installation(files).items
    assert items["/simple/a/"].hashes == {A}
    assert items[f"/files/a/{A}/a-1-py3-none-any.whl"].sha256 == A
    assert items[f"/files/a/{A}/a-1%2Bcpu-py3-none-any.whl"].sha256 == A
    for path in (
        "/simple/c/",
        "/simple/",
        "/simple/a",
        "/simple/A/",
        f"/files/a/{B}/a-1-py3-none-any.whl",
        f"/files/b/{A}/b-1-py3-none-any.whl",
        f"/files/a/{A}/b-1-py3-none-any.whl",
        f"/files/a/{A}/a-1.tar.gz",
        f"/files/a/{A}/../a-1-py3-none-any.whl",
        f"/files/a/{A}/%2e%2e%2fa-1-py3-none-any.whl",
        "",
    ):
        with pytest.raises(KeyError):
            items[path]


def test_a_project_with_dependencies_and_no_lockfile_is_refused():
    files = {"pyproject.toml": b"[project]\nname='x'\ndependencies=['a']\n", "poetry.lock": b""}
    with pytest.raises(JobRefusedError, match=r"uv lock") as caught:
        read_installation(files)
    assert caught.value.reason.code is ReasonCode.LOCKFILE_MISSING
    assert "poetry.lock is not read" in caught.value.reason.message


def test_a_project_with_a_package_json_is_none_in_python():
    files = {"package.json": b'{"name": "x"}', "requirements.txt": b"-e ."}
    assert read_installation(files) is None
