"""Every field is checked when it is given: strict types, finite numbers, bounds, known names."""

import dataclasses
import re
from typing import Any

import pytest

import cloche
from cloche.errors import InvalidRequestError
from cloche.model.snippet import RunFields, RunOptions, SandboxFields, SandboxOptions

# The largest integers have no decimal text by themselves; a refusal must not try to make one.
HUGE = 10**5000
BAD_INTEGERS = [-1, -0.0, 1.5, float("nan"), float("inf"), 1e300, True, "5", b"5", [], -HUGE, HUGE]
LONG_NAME = "x" * 256

WRONG: dict[str, list[Any]] = {
    "timeout_ms": [0, None, 86_400_001, 2**63, *BAD_INTEGERS],
    "cpu_time_ms": [0, False, 86_400_001, *BAD_INTEGERS],
    "queue_timeout_ms": [None, 86_400_001, *BAD_INTEGERS],
    "memory_limit_mb": [0, 15, None, 2**20 + 1, *BAD_INTEGERS],
    "pids_limit": [0, None, 65_537, *BAD_INTEGERS],
    "cpu_limit": [0, -1, 0.001, float("nan"), float("inf"), -0.0, True, "1", 1025, HUGE],
    "allow_network": [None, 0, 1, "yes"],
    "allow_hosts": ["example.org", None, [1], ["a\0"], ["\ud800"]],
    "allow_fs": [None, 0, 1, "yes", []],
    "mounts": [
        None, "x", [("/a", "b")], [cloche.Mount("a", "b")], [cloche.Mount("/a", "../b")],
        [cloche.Mount("/a", "/b")], [cloche.Mount("/a", "")], [cloche.Mount("/a\0", "b")],
        [cloche.Mount(5, "b")], [cloche.Mount("/a", 5)], [cloche.Mount("/a", "b", "no")],  # type: ignore[arg-type]
    ],
    "scratch_limit_mb": [0, None, 2**20 + 1, *BAD_INTEGERS],
    "files": [None, [], "x", {1: "x"}, {"a": 1}, {"a": None}, {"a": "\ud800"}, {"a": bytearray()}],
    "collect": [None, "*", ["/a"], ["../*"], [""], [1], ["a//b"], ["a\0"]],
    "language": [None, "", "js", "Python", "ruby", 1, True, [], {}],
    "runtime": ["", "quickjs", True, 1, []],
    "mode": [None, "", "script", True, []],
    "stdin": [None, 1, ["x"], "\ud800", bytearray(b"x")],
    "args": [None, "x", [1], ["a\0b"], ["\ud800"], {"a": 1}, ["x" * 100_000]],
    "env": [
        None, [], {"": "x"}, {"A=B": "x"}, {1: "x"}, {"A": 1}, {"A": None}, {"A\0": "x"},
        {"A": "\0"}, {"\ud800": "x"}, {"A": "\ud800"}, {"A": "x" * 100_000},
    ],
    "tools": [None, [], {"t": 1}, {"a-b": print}, {"": print}, {1: print}, {"__x": print},
              {"then": print}, {"class": print}, {"é": print}, {"x" * 65: print},
              {f"t{i}": print for i in range(65)}],
    "on_output": ["x", 1, []],
    "output_limit_bytes": [0, None, 2**30 + 1, *BAD_INTEGERS],
    "value_limit_bytes": [0, None, 2**26 + 1, *BAD_INTEGERS],
    "signal": [1, True, "x", object(), cloche.AbortController()],
    "logger": [1, "x", object()],
    "require": [None, [], "memory", {"memory": 1}, {1: "cgroup"}],
    "backend": [None, "", "docker", True, []],
    "trust_domain": [None, "", 1, "a\n", "x" * 201, True],
    "pool_size": [-1, 1025, 1.0, True, "1", HUGE],
    "max_pending": [None, 1_000_001, *BAD_INTEGERS],
}  # fmt: skip

RIGHT: dict[str, list[Any]] = {
    "timeout_ms": [1, 86_400_000],
    "cpu_time_ms": [None, 1, 86_400_000],
    "queue_timeout_ms": [0, 86_400_000],
    "memory_limit_mb": [16, 2**20],
    "cpu_limit": [None, 0.01, 1, 2.5],
    "mounts": [(), [cloche.Mount("/a", "b/c", unsafe_writable=True)]],
    "files": [{}, {"a": "x", "b/c": b"\xff"}],
    "collect": [(), ["*", "a/**", "[ab]?"]],
    "runtime": [None, "bun", "python"],
    "stdin": ["", b"\xff", "é"],
    "args": [(), ["-h", "--", "é", ""], ("a",)],
    "env": [{}, {"A": "", "é": "é\n"}],
    "signal": [None, cloche.AbortController().signal],
    "pool_size": [None, 0],
    "max_pending": [0, 1_000_000],
}


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{index}")
        for name, values in table.items()
        for index, value in enumerate(values)
    ]


@pytest.mark.case("api-11-timeout-values")
@pytest.mark.parametrize(("name", "value"), cases(WRONG))
def test_a_wrong_value_is_refused_by_the_fields_name(name: str, value: Any) -> None:
    for make in (SandboxOptions, SandboxOptions().override) if name in RUN else (SandboxOptions,):
        with pytest.raises(InvalidRequestError) as caught:
            make(**{name: value}) if make is SandboxOptions else make({name: value})
        assert caught.value.message.startswith(name)
        assert len(caught.value.message) < 1000
        assert caught.value.retry_safe


RUN = RunFields.__annotations__


@pytest.mark.parametrize(("name", "value"), cases(RIGHT))
def test_a_right_value_is_taken(name: str, value: Any) -> None:
    assert getattr(SandboxOptions(**{name: value}), name) == value
    if name in RUN:
        assert RunOptions(**{name: value}).given == {name: value}


@pytest.mark.parametrize(
    ("name", "value"), [(name, WRONG[name][0]) for name in WRONG if name in RUN]
)
def test_run_options_are_checked_when_they_are_made(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError):
        RunOptions(**{name: value})


def test_every_field_has_a_check_and_both_tables_know_it() -> None:
    fields = {field.name for field in dataclasses.fields(SandboxOptions)}
    assert fields == set(WRONG)
    assert fields == set(SandboxFields.__annotations__) | set(RUN)
    for name in ("backend", "trust_domain", "pool_size", "max_pending"):
        assert name not in RUN


@pytest.mark.parametrize("make", [SandboxOptions.of, RunOptions, SandboxOptions().override])
def test_an_unknown_field_is_refused_and_a_near_one_named(make: Any) -> None:
    arguments: tuple[Any, ...] = (None,) if make == SandboxOptions.of else ()
    with pytest.raises(InvalidRequestError, match=r"timeout: .*did you mean timeout_ms\?"):
        if make is RunOptions:
            make(timeout=5)
        else:
            make(*arguments, {"timeout": 5})


@pytest.mark.parametrize("name", ["backend", "trust_domain", "pool_size", "max_pending"])
def test_a_field_of_the_sandbox_alone_is_no_field_of_a_run(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="no field of a run"):
        RunOptions(**{name: getattr(SandboxOptions(), name)})


def test_options_are_frozen_and_fields_win_over_them() -> None:
    options = SandboxOptions(timeout_ms=10, allow_fs=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.timeout_ms = 5  # type: ignore[misc]
    both = SandboxOptions.of(options, {"timeout_ms": 20})
    assert (both.timeout_ms, both.allow_fs, options.timeout_ms) == (20, True, 10)
    back = both.override({"allow_fs": False, "timeout_ms": 30})
    assert (back.timeout_ms, back.allow_fs) == (30, False)


@pytest.mark.case("api-13-file-keys")
@pytest.mark.parametrize(
    "path",
    ["../x", "/abs", "a/../../x", "a/..", "a\0b", "", ".", "./a", "a/.", "a//b", "a/", "/",
     LONG_NAME, "é" * 128, "a/" + LONG_NAME, "a/" * 600 + "a", "\ud800"],
)  # fmt: skip
def test_a_file_name_that_is_no_plain_relative_path_is_refused(path: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^files"):
        SandboxOptions(files={path: "x"})


@pytest.mark.case("api-13-file-keys")
def test_a_file_that_is_also_a_folder_is_refused() -> None:
    for files in ({"d": "x", "d/f": "y"}, {"a/b/c": "x", "a": "y"}):
        with pytest.raises(InvalidRequestError, match="a file and a folder"):
            SandboxOptions(files=files)
    SandboxOptions(files={"d": "x", "df": "y", "e/f": "z", "e/g": ""})


@pytest.mark.case("api-13-file-keys")
@pytest.mark.parametrize(
    "path", ["-rf", "--eval", "$(touch y)", "a b", "a\nb", "~x", "..a", "...", "é", "x" * 255]
)
def test_an_odd_but_plain_file_name_is_taken(path: str) -> None:
    assert SandboxOptions(files={path: "x"}).files == {path: "x"}


def test_the_documented_defaults_are_the_defaults() -> None:
    text = SandboxOptions.__doc__ or ""
    for field in dataclasses.fields(SandboxOptions):
        assert re.search(rf"^ +{field.name}: \S", text, re.M), f"{field.name} is not documented"
    defaults = SandboxOptions()
    assert (defaults.timeout_ms, defaults.cpu_time_ms, defaults.queue_timeout_ms) == (
        5_000, None, 30_000,
    )  # fmt: skip
    assert (defaults.memory_limit_mb, defaults.pids_limit, defaults.cpu_limit) == (128, 64, None)
    assert (defaults.allow_network, defaults.allow_fs, defaults.scratch_limit_mb) == (
        False, False, 64,
    )  # fmt: skip
    assert defaults.output_limit_bytes == defaults.value_limit_bytes == 1024 * 1024
    assert (defaults.language, defaults.mode, defaults.trust_domain) == (
        "javascript", "snippet", "local",
    )  # fmt: skip
