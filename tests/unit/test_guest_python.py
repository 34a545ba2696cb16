"""What guest/python.py promises."""

import subprocess
from pathlib import Path

import pytest
from guest_driver import PYTHON, run_program, run_python


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("sum(xs)", 6),
        ("", None),
        ("# only a comment", None),
        ("\ufeff", None),
        ("x = 5", None),
        ("'text'", "text"),
        ("return 7", 7),
        ("if xs:\n  y: int = 2\n  return y\n3", 2),
        ("if not xs:\n  return 1\n3", 3),
        ("exec('y = 3')\nreturn y", 3),
        ("class A:\n  n = xs[0]\nreturn [A.n + x for x in xs]", [2, 3, 4]),
        ("from __future__ import annotations\nx: nope = 1\nreturn x", 1),
        ("import asyncio\nawait asyncio.sleep(0, 4)", 4),
        ("import asyncio\nv = await asyncio.sleep(0, 4)\nreturn v", 4),
        ("import asyncio\nt = asyncio.create_task(asyncio.sleep(0, 4))\nawait t", 4),
        ("import __main__\n__main__.xs", [1, 2, 3]),
        ("import sys\ntry:\n  return 1\nexcept:\n  return 2", 1),
    ],
)  # fmt: skip
def test_the_value_is_the_top_level_return_or_the_last_expression(code: str, value: object) -> None:
    ended = run_python(code, {"xs": [1, 2, 3]})
    assert (ended.value, ended.exit_code) == (value, 0)


def test_values_follow_json_with_null_for_nan() -> None:
    ended = run_python("[(1, 2), float('nan'), 1e999, True, 1.0, '\\ud800é', {1: 2, None: 3}]")
    assert ended.value == [[1, 2], None, None, True, 1.0, "\ud800é", {"1": 2, "null": 3}]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("{'a': [0, 1, {2}]}", "value['a'][2]: set has no JSON form"),
        ("d = {}\nd['d'] = [d]\nd", "value['d'][0]: the value holds itself"),
        ("async def f(): pass\nf()", "value: coroutine has no JSON form: await it"),
        ("{(1, 2): 3}", "value: a key of type tuple has no JSON form"),
        ("b'x'", "value: bytes has no JSON form"),
    ],
)
def test_a_value_without_json_form_is_an_error_that_names_the_path(code: str, message: str) -> None:
    error = run_python(code).error
    assert (error["code"], error["message"]) == ("SANDBOX_EXECUTION_ERROR", message)


@pytest.mark.parametrize(
    "code",
    [
        "a = []\nfor i in range(256): a = [a]\na",
        "a = []\nfor i in range(100000): a = [a]\na",
        "10 ** 4300",
        "import sys\nsys.set_int_max_str_digits(0)\n10 ** 4300",
        "'x' * (1 << 20)",
        "'é' * (1 << 19)",
    ],
)
def test_a_value_over_a_limit_is_too_large(code: str) -> None:
    assert run_python(code).error["code"] == "SANDBOX_VALUE_TOO_LARGE"


def test_values_just_inside_the_limits_pass() -> None:
    assert run_python("a = []\nfor i in range(255): a = [a]\na").value
    assert len(run_python("'é' * ((1 << 19) - 1)").value) == (1 << 19) - 1
    assert run_python("10 ** 4299").value == 10**4299


@pytest.mark.parametrize(
    ("code", "name", "line", "column"),
    [
        ("a = [1,\n\n 1/0]", "ZeroDivisionError", 3, 2),
        ("é = 1; é.foo", "AttributeError", 1, 8),
        ("def f():\r\n  raise KeyError(1)\r\nf()", "KeyError", 2, 3),
        ("def f():\n  raise KeyError(1)\nreturn f()", "KeyError", 2, 3),
        ("import json\njson.loads('x')", "JSONDecodeError", 2, 1),
        ("eval('((')", "SyntaxError", 1, 1),
        ("raise KeyboardInterrupt", "KeyboardInterrupt", 1, 1),
        ("raise ExceptionGroup('g', [ValueError(1)])", "ExceptionGroup", 1, 1),
        ("def f(): f()\nf()", "RecursionError", 1, 10),
    ],
)
def test_an_error_has_its_place_in_the_callers_text(
    code: str, name: str, line: int, column: int
) -> None:
    error = run_python(code).error
    assert error["code"] == "SANDBOX_EXECUTION_ERROR"
    assert (error["name"], error["line"], error["column"]) == (name, line, column)
    assert 'File "snippet.py", line' in error["stack"]
    assert "guest/python" not in error["stack"]


@pytest.mark.parametrize(
    ("code", "line", "column"),
    [
        ("a = 1\nb = = 2", 2, 5),
        ("é = (", 1, 5),
        ("x = '\0'", None, None),
        ("yield 1", 1, 1),
        ("for i in 1, 2:\n  yield i\n  return 3", 2, 3),
        ("def f():\n  await 1\nreturn f()", 2, 3),
        ("-" * 100_000 + "1", None, None),
        ("'\ud800'", None, None),
    ],
)
def test_code_that_does_not_compile_is_invalid_with_its_place(
    code: str, line: int | None, column: int | None
) -> None:
    error = run_python(code).error
    assert error["code"] == "SANDBOX_INVALID_CODE"
    assert (error["line"], error["column"]) == (line, column)
    assert "guest/python" not in error["stack"]


def test_an_error_that_defends_itself_is_still_an_error() -> None:
    code = "class E(Exception):\n  def __str__(self): raise SystemExit(0)\nraise E"
    assert "cannot be read" in run_python(code).error["message"]


def test_messages_and_stacks_are_bounded() -> None:
    error = run_python("raise ValueError('x' * 10**6)").error
    assert len(error["message"]) <= 8 * 1024 and len(error["stack"]) <= 16 * 1024


@pytest.mark.parametrize(
    ("code", "status", "stderr"),
    [
        ("exit(0)", 0, ""),
        ("quit(3)", 3, ""),
        ("import sys\nsys.exit('bye')", 1, "bye\n"),
        ("import os\nos._exit(4)", 4, ""),
    ],
)
def test_leaving_midway_sends_no_frame_and_keeps_the_exit_code(
    code: str, status: int, stderr: str
) -> None:
    ended = run_python(code)
    assert (ended.frame, ended.exit_code, ended.stderr) == (None, status, stderr)


def test_what_was_printed_before_a_kill_is_kept() -> None:
    ended = run_python("print('tick')\nwhile True: pass", timeout_s=1)
    assert (ended.stdout, ended.exit_code) == ("tick\n", -9)


def test_threads_do_not_hold_a_snippet_and_open_files_are_written(tmp_path: Path) -> None:
    code = "import threading, time\nthreading.Thread(target=time.sleep, args=(30,)).start()\n3"
    assert run_python(code, timeout_s=10).value == 3
    file = tmp_path / "out.txt"
    assert run_python(f"f = open({str(file)!r}, 'w')\nf.write('hello')").value == 5
    assert file.read_text() == "hello"


def test_no_name_of_the_harness_is_global() -> None:
    names = "__annotations__ __builtins__ __doc__ __loader__ __name__ __package__ __spec__ x"
    assert run_python("sorted(globals())", {"x": 1}).value == names.split()


PROGRAMS = [
    "import sys\nprint(input()[::-1], sys.argv[1:], __name__, __file__, sys.path[0])",
    "def f(x):\n  return x / 0\ntry:\n  f(1)\nexcept Exception as e:\n  raise KeyError('k') from e",
    "def f(:\n",
    "raise KeyboardInterrupt",
    "import sys\nsys.exit('message')",
    "import atexit\natexit.register(print, 'bye')\n1 / 0",
    "import threading, time\n"
    "threading.Thread(target=lambda: (time.sleep(0.1), print('late'))).start()\n1 / 0",
    "import sys\nsys.excepthook = lambda *a: print(a[2].tb_frame.f_code.co_filename)\n1 / 0",
    "# -*- coding: latin-1 -*-\nraise ExceptionGroup('g', [ValueError(1)])",
    "import pickle\nclass P: pass\nprint(pickle.loads(pickle.dumps(P())).__module__)",
    "print(sorted(globals()))",
]


@pytest.mark.parametrize("text", PROGRAMS)
def test_a_program_behaves_as_the_interpreters_own_main_module(tmp_path: Path, text: str) -> None:
    path = tmp_path / "main.py"
    path.write_text(text)
    plain = subprocess.run(
        [PYTHON, "-S", "-B", str(path), "a"],
        input="abc\n",
        capture_output=True,
        text=True,
        env={"HOME": "/tmp", "PATH": "/usr/bin:/bin"},
        check=False,
    )
    ended = run_program(path, "a", stdin="abc\n")
    assert (ended.stdout, ended.stderr) == (plain.stdout, plain.stderr)
    assert ended.exit_code == plain.returncode


def test_a_programs_error_is_explained(tmp_path: Path) -> None:
    path = tmp_path / "main.py"
    path.write_text("x = 1\nx.nope")
    error = run_program(path).error
    assert (error["name"], error["line"], error["column"]) == ("AttributeError", 2, 1)


def test_files_beside_a_program_shadow_nothing_in_the_harness(tmp_path: Path) -> None:
    for name in ("json", "os", "types", "posix", "_json", "traceback", "_symtable", "linecache"):
        (tmp_path / f"{name}.py").write_text(f"print('shadow {name}')")
    path = tmp_path / "main.py"
    path.write_text("print('user code ran')\n1 / 0")
    assert run_program(path).stdout == "user code ran\n"
    path.write_text("import json")  # the control: the program itself does get its own file
    assert run_program(path).stdout == "shadow json\n"


TOOLS = {"add": lambda a, b: a + b, "echo": lambda *a, **k: [a, k], "never": lambda *_: None}


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("await tools.add(1, 2)", 3),
        ("return await tools.echo(1, key=[None])", [[1], {"key": [None]}]),
        ("import asyncio\nawait asyncio.gather(*(tools.add(i, i) for i in range(3)))", [0, 2, 4]),
        ("n = 0\nfor i in range(20):\n  n = await tools.add(n, i)\nn", 190),
        ("import asyncio\nt = asyncio.create_task(tools.add(1, 2))\nawait t", 3),
        ("import asyncio\n[asyncio.run(tools.add(i, 4)) for i in (3, 4)]", [7, 8]),
        ("len((await tools.echo('é' * 200_000))[0][0])", 200_000),
        ("(await tools.echo('\\ud800'))[0]", ["\ud800"]),
        ("[name for name in dir(tools) if name[0] != '_']", ["add", "echo", "never"]),
        ("import asyncio\nt = asyncio.create_task(tools.never())\nawait asyncio.sleep(0)\n5", 5),
    ],
)
def test_tools_are_awaited_alone_together_and_in_loops(code: str, value: object) -> None:
    ended = run_python(code, tools=TOOLS)
    assert (ended.value, ended.stderr) == (value, "")


def test_a_call_that_waits_holds_a_snippet() -> None:
    assert run_python("await tools.never()", tools=TOOLS, timeout_s=1.5).exit_code == -9


def test_a_tool_that_fails_raises_its_message_and_shows_no_frame_of_the_harness() -> None:
    def fail() -> None:
        raise ValueError("no luck")

    error = run_python("x = 1\nawait tools.fail()", tools={"fail": fail}).error
    assert (error["name"], error["message"], error["line"]) == ("ToolError", "no luck", 2)
    assert error["stack"].endswith('File "snippet.py", line 2, in <module>\nToolError: no luck\n')


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("{'a': [{1}]}", "args[0]['a'][0]: set has no JSON form"),
        ("x=b''", "kwargs['x']: bytes has no JSON form"),
        ("'x' * 2_000_000", "args: the value is larger than"),
    ],
)
def test_arguments_without_json_form_are_refused_before_anything_is_sent(
    argument: str, message: str
) -> None:
    ended = run_python(f"await tools.echo({argument})", tools=TOOLS)
    assert ended.error["message"].startswith(message)
    assert ended.calls == []


def test_tools_cannot_be_changed_and_are_only_there_when_a_request_names_some() -> None:
    assert run_python("tools.add = 1", tools=TOOLS).error["name"] == "AttributeError"
    assert run_python("tools.nothing", tools=TOOLS).error["name"] == "AttributeError"
    assert run_python("'tools' in globals()", stream=True).value is False


def test_a_harness_that_waits_for_its_request_runs_it_as_a_new_one_does() -> None:
    code = "import os, time\nprint('x' * 100_000)\n[xs, os.environ['MINE'], time.tzname[0]]"
    env = {"MINE": "é", "TZ": "Asia/Tokyo"}
    ended = run_python(code, {"xs": 1}, env=env, stream=True, delay_s=0.5)
    assert (ended.value, len(ended.stdout), ended.stderr) == ([1, "é", "JST"], 100_001, "")
    assert run_python("1/0", stream=True).error["line"] == 1
    assert run_python("exit(7)", stream=True).exit_code == 7
