"""`cloche map` as a user meets it: a file of lines in, results in order out, whatever happens."""

import json
import os
import pty
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from needs import BOX, needs
from observer import descendants

CLOCHE = str(Path(sys.executable).with_name("cloche"))
DYING_S = 2
SEED = 20_26
pytestmark = needs(*BOX, "runtime-bun", "runtime-python")


def write_lines(path: Path, lines: list[Any]) -> Path:
    path.write_text(
        "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    )
    return path


def run(*args: Any, **fields: Any) -> subprocess.CompletedProcess[str]:
    fields = {"stdin": subprocess.DEVNULL} | fields if "input" not in fields else fields
    command = [CLOCHE, "map", *map(str, args)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=50, check=False, **fields
    )


def results(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def assert_nothing_runs() -> None:
    deadline = time.monotonic() + DYING_S
    while descendants():
        assert time.monotonic() < deadline, descendants()
        time.sleep(0.005)


def test_each_line_has_its_result_in_order_also_one_that_cannot_be_run(tmp_path: Path):
    (tmp_path / "reverse.py").write_text("print(input()[::-1])")
    lines = write_lines(
        tmp_path / "lines.jsonl",
        [
            {"code": "import time; time.sleep(0.5); 1", "language": "py", "id": "slow"},
            {"code": "a + b", "language": "python", "context": {"a": 2}, "id": 7},
            "",
            {"file": "reverse.py", "stdin": "abc"},
            {"code": "while True: pass", "language": "py", "timeout_ms": 300},
            "{oops",
            {"code": "1", "timeot_ms": 1, "id": [1]},
            {"code": "1", "timeout_ms": 0},
            {"code": "a-b", "context": {"a-b": 1}},
            {"code": "console.log('js'); [1, 2]"},
        ],
    )
    done = run(lines, "--context", '{"b": 3}')
    assert done.returncode == 0, done.stderr
    got = results(done.stdout)
    assert [each["index"] for each in got] == list(range(9))
    assert [(each["id"], each["value"], each["error_code"]) for each in got] == [
        ("slow", 1, None),
        (7, 5, None),
        (None, None, None),
        (None, None, "SANDBOX_TIMEOUT"),
        (None, None, "SANDBOX_INVALID_REQUEST"),
        ([1], None, "SANDBOX_INVALID_REQUEST"),
        (None, None, "SANDBOX_INVALID_REQUEST"),
        (None, None, "SANDBOX_INVALID_REQUEST"),
        (None, [1, 2], None),
    ]
    assert (got[2]["stdout"], got[8]["stdout"]) == ("cba\n", "js\n")
    assert "line 6: not JSON" in got[4]["error"]
    assert "did you mean timeout_ms" in got[5]["error"]
    assert got[0]["isolation"]["controls"]["seccomp"]["strength"] == "enforced"
    assert done.stderr.startswith("cloche: 9 results in ")
    assert done.stderr.endswith(": 4 ok, 5 failed (4 SANDBOX_INVALID_REQUEST, 1 SANDBOX_TIMEOUT)\n")
    assert run(lines, "--fail-on-error").returncode == 1


def test_lines_come_from_a_pipe_and_results_as_soon_as_they_are_there():
    command = [CLOCHE, "map", "-", "-l", "py"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdin is not None and process.stdout is not None
        for number in range(3):
            process.stdin.write(json.dumps({"code": f"{number} + 1"}) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["value"] == number + 1
        process.stdin.write('{"code": "\'the last one has no end\'"}')
        process.stdin.close()
        assert json.loads(process.stdout.read())["value"] == "the last one has no end"
        assert process.wait(20) == 0


@pytest.mark.parametrize(
    ("args", "exit_code", "message"),
    [
        (("none.jsonl",), 2, "none.jsonl: No such file or directory"),
        (("/",), 2, "/: Is a directory"),
        ((), 2, "Missing argument"),
        (("lines.jsonl", "--resume"), 2, "--resume: say what to continue, with --out"),
        (("lines.jsonl", "--out", "lines.jsonl"), 2, "is there already; continue it with --resume"),
        (("lines.jsonl", "--out", "lines.jsonl", "--resume"), 2, "is not the result of index 0"),
        (("lines.jsonl", "--out", "none/out"), 2, "none/out: No such file or directory"),
        (("lines.jsonl", "--out", "/dev/null"), 2, "is no regular file"),
        (("lines.jsonl", "--concurrency", "0"), 2, "--concurrency"),
        (("lines.jsonl", "--timeout-ms", "0"), 2, "timeout_ms: must be from 1"),
        (("lines.jsonl", "-l", "cobol"), 2, "'cobol' is unknown"),
        (("lines.jsonl", "--context", "[1]"), 2, "must be a JSON object"),
    ],
)
def test_what_goes_wrong_has_a_message_and_a_documented_exit_code(
    args: tuple[str, ...], exit_code: int, message: str, tmp_path: Path
):
    write_lines(tmp_path / "lines.jsonl", [{"code": "1"}])
    done = run(*args, cwd=tmp_path)
    assert done.returncode == exit_code, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert (tmp_path / "lines.jsonl").read_text() == '{"code": "1"}\n'


@needs("cgroup-memory")
def test_what_the_host_cannot_do_is_told_once_for_the_command_and_per_line_for_a_line(
    tmp_path: Path,
):
    lines = write_lines(tmp_path / "lines.jsonl", [{"code": "1", "language": "py"}] * 2)
    done = run(lines, "--require", "memory=watchdog")
    first, second = results(done.stdout)
    assert first["error_code"] == second["error_code"] == "SANDBOX_UNAVAILABLE"
    lines = write_lines(tmp_path / "lines.jsonl", [{"code": "1"}] * 2)
    done = run(lines, "-l", "py", "--require", "memory=watchdog")
    assert (done.returncode, done.stdout) == (69, "")
    assert "watchdog" in done.stderr


@needs("worker-engines")
def test_a_worker_runs_lines_of_code_and_of_files(tmp_path: Path):
    (tmp_path / "sum.ts").write_text("enum E { A = 4 }\nE.A + b")
    lines = write_lines(
        tmp_path / "lines.jsonl",
        [
            *({"code": f"b + {n}", "context": {"b": n}} for n in range(40)),
            {"file": "sum.ts"},
            {"code": "for (;;);", "timeout_ms": 200},
            {"code": "1", "env": {"A": "B"}},
        ],
    )
    done = run(lines, "--sandbox", "worker", "--context", '{"b": 1}', "--concurrency", "3")
    assert done.returncode == 0, done.stderr
    *numbers, file, endless, refused = results(done.stdout)
    assert [(each["value"], each["error"]) for each in numbers] == [
        (2 * n, None) for n in range(40)
    ]
    assert file["value"] == 5
    assert endless["error_code"] == "SANDBOX_TIMEOUT"
    assert refused["error_code"] == "SANDBOX_INVALID_REQUEST"


def test_an_output_is_continued_after_its_last_whole_line(tmp_path: Path):
    lines = write_lines(
        tmp_path / "lines.jsonl", [{"code": f"{n} * 2", "id": f"n{n}"} for n in range(12)]
    )
    out = tmp_path / "out.jsonl"
    done = run(lines, "-l", "py", "--out", out, "--resume")  # nothing there yet: from the start
    assert (done.returncode, done.stdout) == (0, "")
    whole = out.read_bytes()
    assert [each["value"] for each in results(whole.decode())] == [n * 2 for n in range(12)]
    ends = [at for at, byte in enumerate(whole) if byte == 10]
    for size in (0, 1, ends[0], ends[0] + 1, ends[6] + 40, len(whole) - 1, len(whole)):
        out.write_bytes(whole[:size])
        done = run(lines, "-l", "py", "--out", out, "--resume")
        assert done.returncode == 0, done.stderr
        got = results(out.read_text())
        assert [(each["index"], each["id"], each["value"]) for each in got] == [
            (n, f"n{n}", n * 2) for n in range(12)
        ]
        kept = whole[: size if size == 0 else whole.rfind(b"\n", 0, size) + 1]
        assert out.read_bytes().startswith(kept)


def test_an_output_of_another_input_is_left_as_it_is(tmp_path: Path):
    lines = write_lines(tmp_path / "lines.jsonl", [{"code": "1", "id": n} for n in range(4)])
    out = tmp_path / "out.jsonl"
    assert run(lines, "-l", "py", "--out", out).returncode == 0
    torn = out.read_bytes()[:-5]
    for other, message in (
        ([{"code": "1", "id": n} for n in (0, 1, 3, 4)], "has the id 2, its line of the input 3"),
        ([{"code": "1", "id": n} for n in range(2)], "more lines than the input"),
        (["{oops"], "has the id 0, its line of the input null"),
    ):
        out.write_bytes(torn)
        write_lines(lines, other)
        done = run(lines, "-l", "py", "--out", out, "--resume")
        assert (done.returncode, message in done.stderr) == (2, True), done.stderr
        assert out.read_bytes() == torn
    out.write_text('{"index": 1}\n')
    assert "is not the result of index 0" in run(lines, "--out", out, "--resume").stderr


def test_two_commands_do_not_write_one_output(tmp_path: Path):
    slow = write_lines(tmp_path / "slow.jsonl", [{"code": "import time; time.sleep(20)"}])
    out = tmp_path / "out.jsonl"
    command = [CLOCHE, "map", str(slow), "-l", "py", "--timeout-ms", "30000", "--out", str(out)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        while len(descendants()) < 2:
            time.sleep(0.01)
        done = run(slow, "--out", out, "--resume")
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=20)
    assert (done.returncode, "is being written by another command" in done.stderr) == (2, True)


@pytest.mark.timeout(240)
def test_killed_at_any_time_it_can_be_continued(tmp_path: Path):
    count = 40
    lines = write_lines(
        tmp_path / "lines.jsonl",
        [{"code": f"print('x' * 20_000); {n}", "id": f"n{n}"} for n in range(count)],
    )
    out = tmp_path / "out.jsonl"
    at = time.monotonic()
    assert run(lines, "-l", "py").returncode == 0
    whole_s = time.monotonic() - at
    command = [CLOCHE, "map", str(lines), "-l", "py", "--out", str(out), "--resume"]
    instants = random.Random(SEED)
    sizes = [0]
    for _ in range(10):
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        time.sleep(instants.uniform(0, whole_s / 2))
        process.kill()
        _, errors = process.communicate(timeout=20)
        assert process.returncode in (-signal.SIGKILL, 0), errors
        assert_nothing_runs()
        data = out.read_bytes() if out.exists() else b""
        whole = data[: data.rfind(b"\n") + 1]
        assert [each["index"] for each in results(whole.decode())] == list(
            range(whole.count(b"\n"))
        )
        assert whole.count(b"\n") >= sizes[-1]  # nothing that was there is lost
        sizes.append(whole.count(b"\n"))
    assert sizes[-1] > 0  # the control: some were cut in their midst
    done = run(*command[2:])
    assert done.returncode == 0, done.stderr
    assert [(each["id"], each["value"]) for each in results(out.read_text())] == [
        (f"n{n}", n) for n in range(count)
    ]


def test_ctrl_c_keeps_what_has_ended(tmp_path: Path):
    lines = [{"code": str(n)} for n in range(5)] + [{"code": "import time; time.sleep(30)"}] * 3
    path = write_lines(tmp_path / "lines.jsonl", lines)
    out = tmp_path / "out.jsonl"
    command = [CLOCHE, "map", str(path), "-l", "py", "--timeout-ms", "40000", "--out", str(out)]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    while not out.exists() or out.read_bytes().count(b"\n") < 5:
        assert process.poll() is None
        time.sleep(0.01)
    at = time.monotonic()
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - at < 5
    assert process.returncode == 130
    assert "cloche: interrupted after 5 results in " in errors
    assert [each["value"] for each in results(out.read_text())] == [0, 1, 2, 3, 4]
    assert_nothing_runs()


def test_a_reader_that_goes_ends_it(tmp_path: Path):
    lines = write_lines(tmp_path / "lines.jsonl", [{"code": "print('x' * 9999)"}] * 500)
    command = [CLOCHE, "map", str(lines), "-l", "py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, **pipes) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(20) == 141
        assert process.stderr.read() == b""


def test_a_full_disk_is_a_message_and_not_a_traceback(tmp_path: Path):
    lines = write_lines(tmp_path / "lines.jsonl", [{"code": "1"}] * 5)
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [CLOCHE, "map", str(lines), "-l", "py"],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=50,
            check=False,
        )
    assert done.returncode == 69
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_grader_of_the_example_says_what_its_document_shows(tmp_path: Path):
    example = Path(__file__).parents[2] / "examples/grader"
    grader = shutil.copytree(example, tmp_path / "grader")
    grade = [sys.executable, "grade.py"]
    with (grader / "lines.jsonl").open("w") as lines:
        subprocess.run([*grade, "lines"], stdout=lines, cwd=grader, check=True)
    assert (grader / "lines.jsonl").read_text().count("\n") == 60
    limits = ("--cpu-time-ms", "1000", "--timeout-ms", "20000")
    done = run("lines.jsonl", "--out", "results.jsonl", *limits, cwd=grader)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("cloche: 60 results in ")
    shown = subprocess.run(
        [*grade, "results.jsonl"], capture_output=True, text=True, cwd=grader, check=True
    )
    said = (example / "README.md").read_text().partition("grade.py results.jsonl\n")[2]
    expected = said.partition("\n```")[0].splitlines()
    assert len(expected) == 20
    for got, told in zip(shown.stdout.splitlines(), expected, strict=True):
        # A fork bomb ends by whichever limit it meets first.
        assert got == told or (got.startswith("s16.py  0 of 3") and told.startswith("s16.py"))


def test_a_bar_is_shown_on_a_terminal_alone(tmp_path: Path):
    lines = write_lines(tmp_path / "lines.jsonl", [{"code": "1"}] * 5)
    leader, follower = pty.openpty()
    done = subprocess.Popen(
        [CLOCHE, "map", str(lines), "-l", "py", "--out", str(tmp_path / "out.jsonl")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=follower,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "80"},
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            shown += os.read(leader, 4096)
        except OSError:  # EIO: the other side is closed
            break
    os.close(leader)
    assert done.wait(20) == 0
    assert "━" in shown.decode()
    assert "5 results" in shown.decode()


def test_many_lines_take_no_more_memory_than_few(tmp_path: Path):
    peaks_mb = []
    for count in (1_000, 60_000):
        lines = write_lines(tmp_path / "lines.jsonl", [json.dumps({"id": "x" * 1000})] * count)
        out = tmp_path / f"out-{count}.jsonl"
        # A peak includes that of the process it was started from: a small one is put between.
        measure = (
            "import resource, subprocess, sys\n"
            "subprocess.run(sys.argv[1:], check=True)\n"
            "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
        )
        command = [sys.executable, "-c", measure, CLOCHE, "map", str(lines), "--out", str(out)]
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True
        )
        with out.open("rb") as reader:
            assert sum(1 for _ in reader) == count
        peaks_mb.append(int(done.stdout) / 1024)
    assert peaks_mb[1] < peaks_mb[0] + 20, peaks_mb
