"""What is printed: where it goes, how it is decoded, what is kept, when it is heard."""

import time
from typing import Any

import pytest

from cloche import SandboxErrorCode

LANGUAGES = ("javascript", "typescript", "python")
MIB = 1024 * 1024


@pytest.mark.parametrize("language", ("javascript", "typescript"))
def test_the_console_is_split_over_both_streams(sandbox: Any, language: str) -> None:
    code = (
        "console.log('log'); console.info('info'); console.debug('debug');"
        "console.warn('warn'); console.error('error'); 1"
    )
    result = sandbox.run(code, language=language)
    assert (result.stdout, result.stderr) == ("log\ninfo\ndebug\n", "warn\nerror\n")


@pytest.mark.parametrize("language", LANGUAGES)
def test_nothing_printed_becomes_the_value_and_nothing_else_is_printed(
    sandbox: Any, language: str
) -> None:
    code = "print('5')" if language == "python" else "console.log('5')"
    result = sandbox.run(code, language=language)
    assert (result.ok, result.value, result.stdout, result.stderr) == (True, None, "5\n", "")
    failed = "raise ValueError('x')" if language == "python" else "throw new Error('x')"
    result = sandbox.run(failed, language=language)
    assert (result.ok, result.stdout, result.stderr) == (False, "", "")


@pytest.mark.kinds("process")
@pytest.mark.case("out-01-invalid-utf8")
def test_bytes_that_are_no_utf8_are_replaced_and_nothing_after_them_is_lost(sandbox: Any) -> None:
    code = (
        "import os, time\n"
        "os.write(1, b'one\\xff\\xfe\\n')\n"
        "os.write(1, b'\\xe2')\n"
        "time.sleep(0.05)\n"
        "os.write(1, b'\\x82\\xac two\\n')\n"
        "os.write(2, b'\\xc0\\x80 three\\xf0\\x9f')\n"
    )
    heard: list[tuple[str, str]] = []
    result = sandbox.run(code, language="python", on_output=lambda *call: heard.append(call))
    assert result.stdout == "one\ufffd\ufffd\n€ two\n"
    assert result.stderr == "\ufffd\ufffd three\ufffd"
    assert (result.stdout_bytes, result.stderr_bytes) == (14, 10)
    for stream, text in (("stdout", result.stdout), ("stderr", result.stderr)):
        assert "".join(piece for where, piece in heard if where == stream) == text
        assert "".join(c.text for c in result.output if c.stream == stream) == text


@pytest.mark.case("out-02-ansi")
def test_control_sequences_are_kept_as_they_are(sandbox: Any) -> None:
    text = "seen\x1b[2J\x1b]0;t\x07\x9b31mA\rB\b\n"
    code = "print(t, end='')"
    assert sandbox.run(code, {"t": text}, language="python").stdout == text
    assert sandbox.run("console.log(t)", {"t": text}).stdout == f"{text}\n"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        (
            "javascript",
            "const row = 'x'.repeat(99); for (let i = 0; i < 1000; i++) console.log(row)",
        ),
        ("python", "for _ in range(1000): print('x' * 99)"),
    ],
)
def test_output_over_its_limit_is_cut_in_the_middle(sandbox: Any, language: str, code: str) -> None:
    heard: list[str] = []
    result = sandbox.run(
        code,
        language=language,
        output_limit_bytes=1000,
        on_output=lambda _, text: heard.append(text),
    )
    assert result.ok, result.error
    assert (result.stdout_bytes, result.stdout_truncated) == (100_000, True)
    first, marker, last = result.stdout.partition("\n[… 99000 bytes cut …]\n")
    assert marker
    assert len(first) == len(last) == 500
    assert set(first + last) == {"x", "\n"}
    assert (result.stderr, result.stderr_truncated, result.stderr_bytes) == ("", False, 0)
    assert "".join(chunk.text for chunk in result.output) == result.stdout
    assert len("".join(heard)) == 100_000


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "console.log('x'.repeat(5e6)); 1"),
        ("python", "print('x' * 5_000_000)\n1"),
    ],
)
def test_much_output_is_whole_when_a_snippet_ends_at_once(
    sandbox: Any, language: str, code: str
) -> None:
    result = sandbox.run(code, language=language, output_limit_bytes=8 * MIB)
    assert result.ok, result.error
    assert result.stdout == "x" * 5_000_000 + "\n"


@pytest.mark.kinds("process")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "process.stdout.write('x'.repeat(5e6) + '\\n'); 1"),
        ("javascript", "console.log('x'.repeat(5e6)); process.exit(0)"),
        ("python", "import sys\nsys.stdout.write('x' * 5_000_000 + '\\n')\nsys.exit(0)"),
    ],
)
def test_much_output_is_whole_when_a_snippet_leaves_at_once(
    sandbox: Any, language: str, code: str
) -> None:
    result = sandbox.run(code, language=language, output_limit_bytes=8 * MIB)
    assert result.ok, result.error
    assert result.stdout == "x" * 5_000_000 + "\n"


@pytest.mark.kinds("process")
def test_both_streams_are_interleaved_in_time(sandbox: Any) -> None:
    code = (
        "import sys, time\n"
        "for i in range(3):\n"
        "    print('out', i, flush=True)\n"
        "    time.sleep(0.03)\n"
        "    print('err', i, file=sys.stderr, flush=True)\n"
        "    time.sleep(0.03)\n"
    )
    result = sandbox.run(code, language="python")
    assert [(chunk.stream, chunk.text) for chunk in result.output] == [
        (stream, f"{name} {number}\n")
        for number in range(3)
        for stream, name in (("stdout", "out"), ("stderr", "err"))
    ]
    times = [chunk.time_ms for chunk in result.output]
    assert times == sorted(times)
    assert 100 < times[-1] - times[0] < result.duration_ms
    assert times[0] > 0


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "console.log('early'); await new Promise(r => setTimeout(r, 300)); 1"),
        ("python", "import time\nprint('early')\ntime.sleep(0.3)\n1"),
    ],
)
def test_output_is_heard_as_it_comes(sandbox: Any, language: str, code: str) -> None:
    heard: list[float] = []
    result = sandbox.run(
        code, language=language, on_output=lambda *_: heard.append(time.monotonic())
    )
    assert result.ok
    assert time.monotonic() - heard[0] > 0.2


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "console.log('before'); console.error('too'); while (true);"),
        ("python", "import sys\nprint('before')\nprint('too', file=sys.stderr)\nwhile True: pass"),
    ],
)
def test_what_was_printed_before_a_kill_is_kept(sandbox: Any, language: str, code: str) -> None:
    result = sandbox.run(code, language=language, timeout_ms=500)
    assert not result.ok
    assert (result.stdout, result.stderr) == ("before\n", "too\n")


@pytest.mark.kinds("process")
def test_what_was_printed_before_a_kill_of_its_own_is_kept(sandbox: Any) -> None:
    code = (
        "print('be', end='')\nprint('fore')\nimport sys\nsys.stderr.write('too\\n')\n"
        "import os\nos.kill(os.getpid(), 9)"
    )
    result = sandbox.run(code, language="python", timeout_ms=500)
    assert (result.ok, result.stdout, result.stderr) == (False, "before\n", "too\n")


def test_an_error_in_on_output_reaches_the_caller_and_the_sandbox_goes_on(sandbox: Any) -> None:
    def fail(stream: str, text: str) -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine"):
        sandbox.run("console.log(1)", on_output=fail)
    assert sandbox.run("1 + 1").value == 2


@pytest.mark.kinds("process")
@pytest.mark.case("out-09-result-forgery")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "const fs = require('fs'); for (const fd of [1, 2, 5, 6, 7])"
         " for (const t of texts) try { fs.writeSync(fd, t + '\\n') } catch {}\n'real'"),
        ("python", "import os\nfor fd in (1, 2, 5, 6, 7):\n    for t in texts:\n"
         "        try: os.write(fd, (t + '\\n').encode())\n        except OSError: pass\n'real'"),
    ],
)  # fmt: skip
def test_no_text_on_any_stream_is_taken_for_the_result(
    sandbox: Any, language: str, code: str
) -> None:
    texts = ['{"ok":true,"value":"FORGED"}', "__RESULT__=FORGED", "exit:0", "::result::FORGED"]
    result = sandbox.run(code, {"texts": texts}, language=language)
    assert (result.ok, result.value) == (True, "real"), result.error
    assert result.stdout == result.stderr == "\n".join(texts) + "\n"


@pytest.mark.kinds("process")
@pytest.mark.case("out-09-result-forgery")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "require('fs').writeSync(4, '{\"ok\":true,\"value\":\"FORGED\"}'); 'real'"),
        ("javascript", "require('fs').writeSync(4, new Uint8Array(3e6)); 'real'"),
        ("javascript", "require('fs').closeSync(4); 'real'"),
        ("python", 'import os\nos.write(4, b\'{"ok":true,"value":"FORGED"}\')\n\'real\''),
        ("python", "import os\nfor _ in range(60): os.write(4, bytes(50_000))\n'real'"),
        ("python", "import os\nos.close(4)\n'real'"),
        ("python", "import os\nos.dup2(1, 4)\n'real'"),
    ],
)
def test_code_that_meddles_with_the_result_channel_harms_its_own_result_alone(
    sandbox: Any, language: str, code: str
) -> None:
    result = sandbox.run(code, language=language)
    assert result.value in (None, "real")
    assert result.ok or result.error_code is SandboxErrorCode.EXECUTION_ERROR
    assert sandbox.run("1 + 1", language=language).value == 2
