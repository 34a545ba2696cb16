"""`cloche repl` as a user meets it: through a pipe, and on a terminal."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from needs import BOX, needs
from observer import descendants

CLOCHE = str(Path(sys.executable).with_name("cloche"))
PATIENCE_S = 20
pytestmark = needs(*BOX, "runtime-bun", "runtime-python")


def run(text: str, *args: str, **fields: Any) -> tuple[int, str, str]:
    done = subprocess.run(
        [CLOCHE, "repl", *args],
        input=text,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        **fields,
    )
    return done.returncode, done.stdout, done.stderr


def test_each_snippet_of_a_pipe_is_a_run_of_its_own_and_its_value_a_line():
    text = "1 + 1\nconst a = 5; a * 2\n({b: [1, {}], c: null})\n\nundefined\nconsole.log('out')\n"
    assert run(text) == (0, '2\n10\n{"b": [1, {}], "c": null}\nout\n', "")
    code, output, errors = run("x = 1\nx\n", "-l", "py")
    assert (code, output) == (1, "")
    assert errors.splitlines() == [
        "SANDBOX_EXECUTION_ERROR: NameError: name 'x' is not defined",
        "  --> snippet.py:1:1",
        "1 | x",
        "  | ^",
    ]


def test_a_snippet_goes_on_while_it_is_open():
    text = (
        "[1,\n\n 2]\n"
        "for i in range(2):\n    print(i)\n\n"
        '"""a\n(\n"""\n'
        ":{\nx = 4\n\nx + 1\n:}\n"
        "def f():\n    return 7\nf()"
    )
    assert run(text, "-l", "python") == (0, '[1, 2]\n0\n1\n"a\\n(\\n"\n5\n7\n', "")


def test_values_go_on_through_the_context():
    text = (
        "[1, 2, 3]\n:let xs = _\nxs.length\n:let n = 4\nxs[0] + n\n"
        ":lang py\nsum(xs) + n\n:context\n:context {}\nn\n"
    )
    code, output, errors = run(text, "--context", '{"a": 1}')
    assert (code, output.splitlines()) == (
        1,
        ["[1, 2, 3]", "3", "5", "python", "10", '{"a": 1, "xs": [1, 2, 3], "n": 4}', "{}"],
    )
    assert "NameError: name 'n' is not defined" in errors


def test_what_is_wrong_is_told_and_the_session_goes_on():
    text = ":foo\n:let a-b = 1\nthrow new Error('no')\nfor (;;);\n'still here'\n:quit\n'not here'\n"
    code, output, errors = run(text, "--timeout-ms", "300")
    assert (code, output) == (1, '"still here"\n')
    for message in (":foo is no command", "'a-b' is no identifier", "Error: no", "timeout_ms=300"):
        assert message in errors
    assert "Traceback" not in errors


def test_the_last_isolation_can_be_asked_for():
    code, output, _ = run("1\n:isolation\n", "-l", "py")
    assert code == 0
    assert output.startswith("1\nbackend: namespaces\n")
    assert "seccomp" in output


@needs("worker-engines")
def test_the_sandbox_can_be_changed_and_stays_where_the_other_one_has_not_what_is_wanted():
    text = (
        "1 + 1\n:let n = _\n:sandbox worker\nn + 'worker'\n:isolation\n"
        ":sandbox process\ntypeof Bun\n"
    )
    code, output, errors = run(text)
    shown = [line for line in output.splitlines() if " " not in line or "backend" in line]
    assert (code, errors) == (0, "")
    assert shown[:3] == ["2", "worker", '"2worker"']
    assert shown[-2:] == ["process", '"object"']
    code, output, errors = run(":sandbox worker\ntypeof Bun\n", "--allow-fs")
    assert (code, output) == (1, '"object"\n')
    assert "allow_fs: a worker has no files" in errors


def test_a_request_that_is_wrong_ends_it_with_2():
    for args, message in (
        (("--timeout-ms", "0"), "timeout_ms: must be from 1"),
        (("-l", "cobol"), "'cobol' is unknown"),
        (("--context", "[1]"), "must be a JSON object"),
        (("--sandbox", "cage"), "'cage' is not one of"),
        (("--mount", "x"), "is not of the form HOST=BOX"),
        (("--require", "x"), "is not of the form CONTROL=MECHANISM"),
    ):
        code, output, errors = run("1\n", *args)
        assert (code, output, message in errors) == (2, "", True), errors


def test_a_reader_that_goes_ends_it():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [CLOCHE, "repl", "-l", "py", "--timeout-ms", "30000"]
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write("print('a', flush=True)\nwhile True: print('x' * 999)\n\n")
        process.stdin.flush()
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(PATIENCE_S) == 141
        assert process.stderr is not None
        assert process.stderr.read() == ""
        process.stdin.close()


class Terminal:
    """A person at a terminal."""

    def __init__(self, leader: int, process: subprocess.Popen[bytes]) -> None:
        self.leader = leader
        self.process = process
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self.leader, text.encode())

    def wait_for(self, text: str) -> str:
        """What was shown up to this text."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.shown:
            assert time.monotonic() < deadline, f"no {text!r} in {self.shown!r}"
            if select.select([self.leader], [], [], 0.1)[0]:
                try:
                    self.shown += os.read(self.leader, 4096).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"it ended before {text!r}: {self.shown!r}") from None
        before, _, self.shown = self.shown.partition(text)
        return before


@contextmanager
def at_a_terminal(folder: Path, *args: str) -> Iterator[Terminal]:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [CLOCHE, "repl", "-l", "py", "--timeout-ms", "60000", *args],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=_take_terminal,
        env={
            **os.environ,
            "TERM": "dumb",
            "CLOCHE_CACHE_DIR": str(folder),
            "INPUTRC": "/dev/null",
        },
    )
    os.close(follower)
    try:
        yield Terminal(leader, process)
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        os.close(leader)
        deadline = time.monotonic() + 2
        while descendants() and time.monotonic() < deadline:
            time.sleep(0.005)


def _take_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_on_a_terminal_it_greets_prompts_and_leaves_by_ctrl_d(folder: Path):
    with at_a_terminal(folder) as terminal:
        greeting = terminal.wait_for("py> ")
        assert "cloche repl, python in a process sandbox" in greeting
        assert "sees nothing of the ones before" in greeting
        terminal.type("6 * 7\r")
        assert "\n42\r\n" in terminal.wait_for("\x1b[2m")  # how long it took, dim
        terminal.wait_for("py> ")
        terminal.type("if True:\r")
        terminal.wait_for("... ")
        terminal.type("  print('yes', end='')\r\r")
        terminal.wait_for("\r\nyes\r\n")  # and nothing comes behind it on its line
        terminal.wait_for("py> ")
        terminal.type(":help\r")
        assert "Ctrl-C ends the run" in terminal.wait_for("py> ")
        terminal.type("\x04")
        assert terminal.process.wait(PATIENCE_S) == 0
    assert (folder / "repl-history").stat().st_mode & 0o777 == 0o600


def test_ctrl_c_ends_the_run_and_not_the_session(folder: Path):
    with at_a_terminal(folder) as terminal:
        terminal.wait_for("py> ")
        terminal.type("import time; print('go' + 'ing', flush=True); time.sleep(50)\r")
        terminal.wait_for("\r\ngoing\r\n")
        at = time.monotonic()
        terminal.type("\x03")
        terminal.wait_for("interrupted")
        terminal.wait_for("py> ")
        assert time.monotonic() - at < 5
        terminal.type("abc(\r")
        terminal.wait_for("... ")
        terminal.type("\x03")
        terminal.wait_for("py> ")
        terminal.type("'still' + ' here'\r")
        terminal.wait_for('"still here"')


def test_on_a_terminal_control_sequences_are_shown_and_not_obeyed(folder: Path):
    with at_a_terminal(folder) as terminal:
        terminal.wait_for("py> ")
        terminal.type(r"print('\x1b]0;title\x07', end=''); 'a\x9b31m\x1b[2J'" + "\r")
        terminal.wait_for("\r\n␛]0;title␇\r\n")
        terminal.wait_for('"a\\x9b31m\\u001b[2J"\r\n')
        terminal.wait_for("py> ")
        terminal.type(r"raise ValueError('\x1b[2J\x9b')" + "\r")
        terminal.wait_for("ValueError: ␛[2J\\x9b")


def test_what_was_typed_can_be_had_again_also_in_the_next_session(folder: Path):
    for _ in range(2):
        with at_a_terminal(folder) as terminal:
            terminal.wait_for("py> ")
            if not (folder / "repl-history").read_text():
                terminal.type("40 + 2\r")
            else:
                terminal.type("\x10\r")  # Ctrl-P
            terminal.wait_for("\n42\r\n")
            terminal.wait_for("py> ")
            terminal.type("\x04")
            terminal.process.wait(PATIENCE_S)
