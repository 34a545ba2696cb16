"""Programs: the runtime's main module, with stdin, arguments, variables, files and an exit code."""

import json
from typing import Any

import pytest

from cloche import InvalidRequestError, SandboxErrorCode

pytestmark = pytest.mark.kinds("process")

LANGUAGES = ("javascript", "typescript", "python")
ECHO = {
    "javascript": "process.stdout.write(require('fs').readFileSync(0))",
    "typescript": "import { readFileSync } from 'node:fs';\nprocess.stdout.write(readFileSync(0))",
    "python": "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())",
}
SHOW = {
    "javascript": "console.log(JSON.stringify(process.argv.slice(2)))",
    "typescript": "const a: string[] = process.argv.slice(2); console.log(JSON.stringify(a))",
    "python": "import json, sys\nprint(json.dumps(sys.argv[1:], ensure_ascii=False,"
    " separators=(',', ':')))",
}
EXIT = {
    "javascript": "console.log('x'); process.exit({})",
    "typescript": "console.log('x'); process.exitCode = {}",
    "python": "print('x')\nimport sys\nsys.exit({})",
}


def run(sandbox: Any, language: str, code: str, **fields: Any) -> Any:
    return sandbox.run(code, language=language, mode="program", **fields)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("stdin", ["", "one\ntwo", "é😀\n", b"\xff\0", "x" * 300_000])
def test_a_program_reads_its_stdin_to_the_end(
    sandbox: Any, language: str, stdin: str | bytes
) -> None:
    result = run(sandbox, language, ECHO[language], stdin=stdin)
    data = stdin.encode() if isinstance(stdin, str) else stdin
    assert (result.ok, result.value, result.exit_code) == (True, None, 0), result.error
    assert result.stdout == data.decode("utf-8", "replace")
    assert result.stdout_bytes == len(data)


@pytest.mark.parametrize("language", LANGUAGES)
def test_stdin_that_nobody_reads_does_no_harm(sandbox: Any, language: str) -> None:
    code = "print('done')" if language == "python" else "console.log('done')"
    assert run(sandbox, language, code, stdin="x" * 2_000_000).stdout == "done\n"


def test_a_snippet_may_read_stdin_too(sandbox: Any) -> None:
    assert sandbox.run("input()", language="python", stdin="abc\n").value == "abc"
    assert sandbox.run("require('fs').readFileSync(0, 'utf8')", stdin="abc").value == "abc"


@pytest.mark.parametrize("language", LANGUAGES)
def test_arguments_arrive_as_they_are(sandbox: Any, language: str) -> None:
    args = ["a b", "", "-h", "--help", "--eval", "-e", "$(x)", "é", "*", "--", "-"]
    result = run(sandbox, language, SHOW[language], args=args)
    assert result.ok, result.error
    assert result.stdout == '["' + '","'.join(args) + '"]\n'


def test_a_snippet_has_no_arguments(sandbox: Any) -> None:
    with pytest.raises(InvalidRequestError, match="args"):
        sandbox.run("1", args=["a"])


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_environment_is_the_callers_variables_and_the_documented_few(
    sandbox: Any, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLOCHE_TEST_SECRET", "s")
    given = {"MINE": "é\n=", "EMPTY": "", "TZ": "Europe/Paris"}
    code = {
        "python": "import json, os\nprint(json.dumps(dict(os.environ)))",
    }.get(language, "console.log(JSON.stringify(process.env))")
    result = run(sandbox, language, code, env=given)
    seen = json.loads(result.stdout)
    assert given.items() <= seen.items()
    assert (seen["HOME"], seen["LANG"]) == ("/tmp", "C.UTF-8")
    assert "CLOCHE_TEST_SECRET" not in seen
    few = {"PATH", "HOME", "TMPDIR", "LANG", "DO_NOT_TRACK", "LC_CTYPE"}
    extra = set(seen) - set(given) - few
    assert all(name.startswith("BUN_") for name in extra), extra


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("exit_code", [0, 1, 3, 255])
def test_ok_means_exit_code_zero(sandbox: Any, language: str, exit_code: int) -> None:
    result = run(sandbox, language, EXIT[language].format(exit_code))
    assert (result.exit_code, result.signal, result.stdout) == (exit_code, None, "x\n")
    assert result.ok is (exit_code == 0)
    assert result.value is None
    if exit_code:
        assert result.error_code is SandboxErrorCode.EXECUTION_ERROR
        assert str(exit_code) in result.error
    else:
        assert (result.error, result.error_code) == (None, None)


@pytest.mark.case("out-10-exit-code-forgery")
def test_the_exit_code_is_the_kernels_word(sandbox: Any) -> None:
    lines = "__RC__=0\n__EXIT_CODE__=0\nexit_code: 0\n"
    result = run(sandbox, "python", f"print({lines!r}, end='')\nexit(3)")
    assert (result.ok, result.exit_code, result.stdout) == (False, 3, lines)


def test_a_program_that_a_signal_kills_is_told_with_the_signal(sandbox: Any) -> None:
    for number in (9, 11, 6):
        result = run(sandbox, "python", f"import os\nos.kill(os.getpid(), {number})")
        assert (result.ok, result.exit_code, result.signal) == (False, None, number)
        assert result.error_code is SandboxErrorCode.EXECUTION_ERROR
        assert str(number) in result.error


@pytest.mark.parametrize(
    ("language", "code", "line"),
    [
        ("javascript", "const a = 1;\nfunction f() {\n  throw new RangeError('mine');\n}\nf();", 3),
        ("typescript", "const a: number = 1;\n\nthrow new RangeError('mine');", 3),
        ("javascript", "\nPromise.reject(new RangeError('mine'))", 2),
        ("javascript", "\n\nsetTimeout(() => { throw new RangeError('mine') })", 3),
        ("python", "def f():\n    raise LookupError('mine')\n\nf()", 2),
    ],
)
def test_an_uncaught_error_ends_a_program_as_its_runtime_does(
    sandbox: Any, language: str, code: str, line: int
) -> None:
    result = run(sandbox, language, code)
    assert (result.ok, result.exit_code) == (False, 1)
    assert result.error_code is SandboxErrorCode.EXECUTION_ERROR
    assert "mine" in result.error and result.error_line == line
    assert "mine" in result.stderr
    for text in (result.stderr, result.error, result.error_stack or ""):
        assert "/opt/cloche" not in text


@pytest.mark.parametrize(
    ("language", "code", "column"),
    [
        ("javascript", "let a = 1\nlet b = = 2", 9),
        ("typescript", "let a: number = 1\nlet b = = 2", 9),
        ("python", "a = 1\nb = = 2", 5),
    ],
)
def test_a_program_that_does_not_parse_is_invalid_code(
    sandbox: Any, language: str, code: str, column: int
) -> None:
    result = run(sandbox, language, code)
    assert result.error_code is SandboxErrorCode.INVALID_CODE
    assert (result.error_line, result.error_column) == (2, column)
    assert result.exit_code not in (0, None)


def test_a_program_is_the_main_module(sandbox: Any) -> None:
    code = "console.log(require.main === module, __filename, process.cwd())"
    assert run(sandbox, "javascript", code).stdout == "true /workspace/main.js /workspace\n"
    code = "console.log(import.meta.main, import.meta.path); export {}"
    assert run(sandbox, "typescript", code).stdout == "true /workspace/main.ts\n"
    code = "import os, sys\nprint(__name__, __file__, sys.argv, os.getcwd())"
    expected = "__main__ /workspace/main.py ['/workspace/main.py'] /workspace\n"
    assert run(sandbox, "python", code).stdout == expected


def test_a_program_waits_for_its_threads_timers_and_exit_handlers(sandbox: Any) -> None:
    code = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'handler')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
    )
    assert run(sandbox, "python", code).stdout == "thread\nhandler\n"
    code = (
        "process.on('exit', () => console.log('handler'));"
        "setTimeout(() => console.log('timer'), 50)"
    )
    assert run(sandbox, "javascript", code).stdout == "timer\nhandler\n"


def test_files_are_laid_into_the_workspace_and_globs_come_back(sandbox: Any) -> None:
    code = (
        "import os, pathlib\n"
        "print(open('in/a.txt').read(), open('b.bin', 'rb').read())\n"
        "os.makedirs('out/deep')\n"
        "pathlib.Path('out/x.txt').write_text('é')\n"
        "pathlib.Path('out/deep/y.bin').write_bytes(b'\\xff')\n"
        "pathlib.Path('out/other').write_text('no')\n"
        "pathlib.Path('in/a.txt').write_text('changed')\n"
    )
    files = {"in/a.txt": "text", "b.bin": b"\xfe"}
    globs = ["out/**/*.txt", "out/deep/*", "in/*", "nothing"]
    result = run(sandbox, "python", code, files=files, collect=globs)
    assert (result.ok, result.stdout) == (True, "text b'\\xfe'\n"), (result.error, result.stderr)
    assert dict(result.files) == {
        "in/a.txt": b"changed",
        "out/deep/y.bin": b"\xff",
        "out/x.txt": "é".encode(),
    }


def test_files_come_back_from_a_run_that_failed_too(sandbox: Any) -> None:
    code = "open('log', 'w').write('so far')\nraise SystemExit(3)"
    result = run(sandbox, "python", code, collect=["log"])
    assert (result.exit_code, dict(result.files)) == (3, {"log": b"so far"})
    code = "open('log', 'w', 1).write('so far\\n')\nwhile True: pass"
    result = run(sandbox, "python", code, collect=["log"], timeout_ms=500)
    assert result.error_code is SandboxErrorCode.TIMEOUT
    assert dict(result.files) in ({"log": b"so far\n"}, {})


@pytest.mark.case("api-13-file-keys")
def test_odd_file_names_are_plain_files(sandbox: Any) -> None:
    names = ["-rf", "--eval", "$(touch y)", "a b", "a\nb", "~x", "é", "...", "x" * 255]
    code = "import json, os\nprint(json.dumps(sorted(os.listdir('.'))))"
    result = run(sandbox, "python", code, files=dict.fromkeys(names, "x"))
    assert result.ok, result.error
    assert json.loads(result.stdout) == sorted([*names, "main.py"])


def test_a_file_in_the_programs_place_is_refused(sandbox: Any) -> None:
    for language, name in (("python", "main.py"), ("javascript", "main.js")):
        with pytest.raises(InvalidRequestError, match=name):
            run(sandbox, language, "", files={name: "x"})
        with pytest.raises(InvalidRequestError, match=name):
            run(sandbox, language, "", files={f"{name}/x": "x"})


def test_files_that_do_not_fit_are_refused(sandbox: Any) -> None:
    with pytest.raises(InvalidRequestError, match="scratch_limit_mb"):
        run(sandbox, "python", "", files={"big": bytes(2 * 1024 * 1024)}, scratch_limit_mb=1)


def test_a_program_may_import_the_callers_files_but_they_shadow_nothing_of_ours(
    sandbox: Any,
) -> None:
    files = {"mine.py": "X = 5", "json.py": "raise SystemExit(9)", "_json.py": "1/0"}
    assert run(sandbox, "python", "import mine\nprint(mine.X)", files=files).stdout == "5\n"
    assert sandbox.run("{'a': 1}", language="python", files=files).value == {"a": 1}
    files = {"mine.ts": "export const x: number = 5"}
    code = "import { x } from './mine'; console.log(x)"
    assert run(sandbox, "typescript", code, files=files).stdout == "5\n"


@pytest.mark.parametrize("language", LANGUAGES)
def test_an_empty_program_is_ok(sandbox: Any, language: str) -> None:
    assert run(sandbox, language, "").ok
