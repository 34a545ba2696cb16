"""Fields of a sandbox are the defaults of its runs; those of a run win, both ways."""

from collections.abc import Callable
from typing import Any

import pytest

import cloche
from cloche import InvalidRequestError, RunOptions, SandboxOptions


@pytest.mark.kinds("process")
def test_a_runs_fields_win_over_its_options_and_those_over_the_sandboxs(
    create_sync: Callable[..., Any],
) -> None:
    options = SandboxOptions(language="python", timeout_ms=4000, env={"A": "sandbox"})
    code = "import os\nos.environ['A']"
    with create_sync(options, env={"A": "field"}) as sandbox:
        assert sandbox.run(code).value == "field"
        run_options = RunOptions(env={"A": "run"})
        assert sandbox.run(code, None, run_options).value == "run"
        assert sandbox.run(code, None, run_options, env={"A": "last"}).value == "last"
        assert sandbox.run(code).value == "field"
        assert sandbox.run("1 + 1", language="javascript").runtime.name == "bun"
    assert options.env == {"A": "sandbox"}


@pytest.mark.kinds("process")
def test_what_a_sandbox_allows_a_run_may_forbid_and_the_other_way_round(
    create_sync: Callable[..., Any],
) -> None:
    code = "open('x', 'w').write('x')"
    with create_sync(language="python", allow_fs=True) as open_sandbox:
        assert open_sandbox.run(code).value == 1
        assert not open_sandbox.run(code, allow_fs=False).ok
        assert open_sandbox.run(code).value == 1
    with create_sync(language="python") as closed_sandbox:
        assert not closed_sandbox.run(code).ok
        assert closed_sandbox.run(code, allow_fs=True).value == 1
        assert not closed_sandbox.run(code).ok


@pytest.mark.kinds("process")
def test_nothing_is_writable_without_allow_fs_and_the_error_says_so(sandbox: Any) -> None:
    result = sandbox.run("open('x', 'w')", language="python")
    assert "Read-only file system" in result.error


@pytest.mark.parametrize(
    ("fields", "code", "is_ok"),
    [
        ({"timeout_ms": 50}, "n = 0\nwhile n < 8_000_000: n += 1", False),
        ({"timeout_ms": 30_000}, "n = 0\nwhile n < 8_000_000: n += 1", True),
        ({"memory_limit_mb": 48}, "len(['x' * 1_000_000 + str(i) for i in range(80)])", False),
        ({"memory_limit_mb": 256}, "len(['x' * 1_000_000 + str(i) for i in range(80)])", True),
        ({"value_limit_bytes": 20}, "'x' * 50", False),
        ({"value_limit_bytes": 100}, "'x' * 50", True),
    ],
)
def test_limits_are_set_per_run(
    sandbox: Any, fields: dict[str, Any], code: str, is_ok: bool
) -> None:
    result = sandbox.run(code, language="python", **fields)
    assert result.ok is is_ok, result.error


@pytest.mark.kinds("process")
@pytest.mark.parametrize(("limit", "is_ok"), [(1, False), (8, True)])
def test_the_limit_of_what_is_written_is_set_per_run(sandbox: Any, limit: int, is_ok: bool) -> None:
    code = "open('x', 'wb').write(bytes(2 << 20))"
    result = sandbox.run(code, language="python", allow_fs=True, scratch_limit_mb=limit)
    assert result.ok is is_ok, result.error


@pytest.mark.kinds("process")
def test_the_number_of_processes_is_set_per_run(sandbox: Any) -> None:
    code = (
        "import os, time\n"
        "made = 0\n"
        "try:\n"
        "    for _ in range(30):\n"
        "        if os.fork() == 0:\n"
        "            time.sleep(30)\n"
        "        made += 1\n"
        "except OSError: pass\n"
        "made"
    )
    assert sandbox.run(code, language="python", pids_limit=64).value == 30
    assert sandbox.run(code, language="python", pids_limit=8).value == 7


@pytest.mark.parametrize("where", ["sandbox", "run", "one-shot"])
@pytest.mark.parametrize("fields", [{"timeout": 5}, {"nope": 1}, {"memory_limit": 5}])
def test_an_unknown_field_is_refused(
    create_sync: Callable[..., Any], sandbox: Any, where: str, fields: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(fields))):
        if where == "sandbox":
            create_sync(**fields)
        elif where == "run":
            sandbox.run("1", **fields)
        else:
            cloche.sync.run("1", **fields)


@pytest.mark.parametrize("options", [{"timeout_ms": 5}, 5, "x", SandboxOptions()])
def test_options_of_another_kind_are_refused(sandbox: Any, options: Any) -> None:
    with pytest.raises(InvalidRequestError, match="RunOptions"):
        sandbox.run("1", None, options)
    with pytest.raises(InvalidRequestError, match="RunOptions"):
        cloche.sync.run("1", None, options)


@pytest.mark.parametrize("options", [{"timeout_ms": 5}, 5, "x", RunOptions()])
def test_sandbox_options_of_another_kind_are_refused(
    create_sync: Callable[..., Any], options: Any
) -> None:
    with pytest.raises(InvalidRequestError, match="SandboxOptions"):
        create_sync(options)


def test_a_wrong_field_harms_nothing(sandbox: Any) -> None:
    for fields in ({"timeout_ms": -1}, {"files": {"../x": ""}}, {"stdin": 5}):
        with pytest.raises(InvalidRequestError):
            sandbox.run("1", **fields)
    assert sandbox.run("1 + 1").value == 2


def test_the_one_shot_takes_the_same_fields() -> None:
    result = cloche.sync.run("sum(xs)", {"xs": [1, 2, 3]}, language="python", timeout_ms=4000)
    assert (result.value, result.ok) == (6, True)
    result = cloche.sync.run(
        "print(input()[::-1])", options=RunOptions(language="python", mode="program"), stdin="abc\n"
    )
    assert result.stdout == "cba\n"
