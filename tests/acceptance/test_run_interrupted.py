"""`cloche run` that is cut short: by keys, by signals, by a reader that goes, by a full disk."""

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from needs import BOX, needs
from observer import descendants

CLOCHE = str(Path(sys.executable).with_name("cloche"))
DYING_S = 2
# What it prints once the guest runs; then it would go on for long.
ENDLESS = "import time; print('started', flush=True); time.sleep(60)"
pytestmark = needs(*BOX, "runtime-bun", "runtime-python")


def start(code: str, *args: str, **fields: int) -> subprocess.Popen[str]:
    command = [CLOCHE, "run", "-l", "py", "-e", code, "--timeout-ms", "60000", *args]
    fields = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | fields
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, text=True, **fields)


def started(code: str = ENDLESS) -> subprocess.Popen[str]:
    process = start(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def assert_boxes_die_with_it(process: subprocess.Popen[str]) -> None:
    """Cloche was cut off: nobody waited for its boxes, which the launcher ends on its own."""
    process.communicate(timeout=20)
    deadline = time.monotonic() + DYING_S
    while descendants():
        assert time.monotonic() < deadline, descendants()
        time.sleep(0.005)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_ends_the_run_and_says_so(number: signal.Signals):
    process = started()
    at = time.monotonic()
    process.send_signal(number)
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - at < 5
    assert process.returncode == 130
    assert "SANDBOX_ABORTED: the run was aborted" in errors


def test_the_second_signal_ends_cloche_at_once_and_nothing_is_left():
    process = started()
    for _ in range(2):
        process.send_signal(signal.SIGINT)
    assert_boxes_die_with_it(process)
    # Either it had ended by the first one already, or the second one ended it.
    assert process.returncode in (130, 128 + signal.SIGINT)


def test_a_signal_before_the_run_has_started_leaves_nothing():
    for delay_s in (0.0, 0.05, 0.1, 0.2, 0.3):
        process = start("1")
        time.sleep(delay_s)
        process.send_signal(signal.SIGINT)
        assert_boxes_die_with_it(process)
        # By the signal itself where Python had not come so far as to take it.
        assert process.returncode in (0, 1, 130, -signal.SIGINT)


def test_kill_leaves_nothing():
    process = started()
    assert len(descendants()) > 1  # the control: there are boxes to die
    process.kill()
    assert_boxes_die_with_it(process)
    assert process.returncode == -signal.SIGKILL


def test_a_reader_that_goes_ends_the_run():
    process = start("while True: print('x' * 1000)")
    assert process.stdout is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(20) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_a_full_disk_is_a_message_and_not_a_traceback():
    with open("/dev/full", "w") as full:
        process = start("{'a': 1}", stdout=full.fileno())
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 69
    assert "No space left on device" in errors
    assert "Traceback" not in errors


def test_on_a_terminal_control_sequences_are_shown_and_not_obeyed():
    leader, follower = pty.openpty()
    code = r"print('visible\x1b[2J\x1b]0;title\x07\x9b31mFAIL\rPASS'); print('end')"
    process = start(code, stdout=follower, stderr=follower)
    os.close(follower)
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # EIO: the other side is closed
            break
        shown += chunk
    os.close(leader)
    assert process.wait(20) == 0
    text = shown.decode().replace("\r\n", "\n")
    assert text == "visible␛[2J␛]0;title␇\\x9b31mFAIL␍PASS\nend\n"
    # Control: the same bytes reach a pipe as they are.
    piped = start(code)
    assert "\x1b[2J" in piped.communicate(timeout=20)[0]
