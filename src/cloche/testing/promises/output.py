"""Output: what is printed, where it goes, and what is kept of it."""

from __future__ import annotations

import asyncio
import time

from cloche.errors import SandboxErrorCode
from cloche.testing.claims import describe, has_code, has_value, holds, is_ok, same
from cloche.testing.subject import Subject, promise


@promise(601)
async def the_console_is_split_over_both_streams(subject: Subject) -> None:
    """What a program says goes to stdout, its warnings and errors to stderr.

    "console.log/info/debug and print → stdout; console.warn/error → stderr."
    """
    codes = {
        "javascript": "console.log('log'); console.info('info'); console.debug('debug');"
        "console.warn('warn'); console.error('error'); 1",
        "python": "print('log')\nprint('info')\nprint('debug')\n1",
    }
    async for result in subject.each(codes):
        same(result.stdout, "log\ninfo\ndebug\n", "stdout")
        holds(result.stderr in ("warn\nerror\n", ""), f"stderr: {result.stderr!r}")
        is_python = result.stderr == "" and "python" in subject.languages
        holds(is_python or result.stderr != "", "console.warn and error are lost")


@promise(602)
async def nothing_printed_becomes_the_value(subject: Subject) -> None:
    """Text that looks like a result is output, and nothing else is printed.

    "Nothing printed or written to a file can become the value."
    """
    forged = '{"ok":true,"value":"FORGED"}'
    codes = {
        "javascript": "console.log(forged); console.error(forged); 'real'",
        "python": "print(forged)\n'real'",
    }
    async for result in subject.each(codes, context={"forged": forged}):
        has_value(result, "real")
        same(result.stdout, f"{forged}\n", "stdout")
        holds(result.stderr in (f"{forged}\n", ""), f"stderr: {result.stderr!r}")
    codes = {"javascript": "console.log('5')", "python": "print('5')"}
    async for result in subject.each(codes):
        has_value(result, None)
        same((result.stdout, result.stderr), ("5\n", ""), "output")


@promise(603)
async def output_over_its_limit_is_cut_in_the_middle(subject: Subject) -> None:
    """The first and the last half are kept, with a line between that counts what was cut.

    "`output_limit_bytes`: output per stream: first half + last half, a marker line between."
    """
    codes = {
        "javascript": "for (let i = 0; i < 1000; i++) console.log('x'.repeat(99))",
        "python": "for i in range(1000):\n    print('x' * 99)",
    }
    async for result in subject.each(codes, output_limit_bytes=1000, timeout_ms=20_000):
        is_ok(result)
        same((result.stdout_bytes, result.stdout_truncated), (100_000, True), "sizes")
        first, marker, last = result.stdout.partition("\n[… 99000 bytes cut …]\n")
        holds(bool(marker), f"no marker in {result.stdout[400:700]!r}")
        same((len(first), len(last)), (500, 500), "halves")
        same("".join(chunk.text for chunk in result.output), result.stdout, "output")
        same((result.stderr_bytes, result.stderr_truncated), (0, False), "stderr")


@promise(604)
async def output_is_heard_as_it_comes(subject: Subject) -> None:
    """`on_output` is called with stream and text while the code still runs.

    "`on_output`: called with (stream, text) as it comes."
    """
    codes = {
        "javascript": "console.log('early'); const t = Date.now(); while (Date.now() - t < 400); 1",
        "python": "print('early', flush=True)\nwhile True:\n    pass",
    }
    for language in subject.languages:
        heard: list[tuple[str, str, float]] = []
        code = codes["python" if language == "python" else "javascript"]
        result = await subject.run(
            code,
            language=language,
            timeout_ms=400 if language == "python" else 5000,
            on_output=lambda s, t, heard=heard: heard.append((s, t, time.monotonic())),
        )
        ended = time.monotonic()
        holds(bool(heard), f"nothing was heard: {describe(result)}")
        same("".join(text for _, text, _ in heard), "early\n", "heard")
        same(heard[0][0], "stdout", "stream")
        holds(ended - heard[0][2] > 0.2, f"heard {ended - heard[0][2]:.3f} s before the end")


@promise(605)
async def what_was_printed_before_a_kill_is_kept(subject: Subject) -> None:
    """A run that is stopped has its output up to then.

    "What was printed before a kill is kept."
    """
    codes = {
        "javascript": "console.log('before'); while (true);",
        "python": "print('before')\nwhile True:\n    pass",
    }
    async for result in subject.each(codes, timeout_ms=500):
        has_code(result, SandboxErrorCode.TIMEOUT)
        same(result.stdout, "before\n", "stdout")


@promise(606)
async def an_error_in_on_output_reaches_the_caller(subject: Subject) -> None:
    """What `on_output` raises is raised by `run`, and the sandbox goes on.

    "`on_output`: called with (stream, text) as it comes."
    """

    def fail(stream: str, text: str) -> None:
        raise LookupError("mine")

    code = "print(1)" if subject.language == "python" else "console.log(1)"
    try:
        await subject.run(code, on_output=fail)
    except LookupError:
        pass
    else:
        raise AssertionError("the error was lost")
    has_value(await subject.run("1 + 1"), 2)


@promise(607)
async def output_is_interleaved_with_time(subject: Subject) -> None:
    """`output` has both streams in order, each piece with its time since the start of the code.

    "`output` (interleaved, with time and stream)."
    """
    codes = {
        "javascript": "for (const i of [1, 2, 3]) { console.log(i);"
        " const t = Date.now(); while (Date.now() - t < 40); } 1",
        "python": "for i in [1, 2, 3]:\n    print(i, flush=True)\n"
        "    n = 0\n    while n < 400000:\n        n += 1\n1",
    }
    async for result in subject.each(codes, timeout_ms=20_000):
        is_ok(result)
        same("".join(chunk.text for chunk in result.output), "1\n2\n3\n", "output")
        times = [chunk.time_ms for chunk in result.output]
        holds(times == sorted(times), f"times: {times}")
        holds(times[0] >= 0 and times[-1] <= result.duration_ms + 50, f"times: {times}")
        same({chunk.stream for chunk in result.output}, {"stdout"}, "streams")


@promise(608)
async def any_text_can_be_printed(subject: Subject) -> None:
    """Control sequences, NUL and all of Unicode are kept as they are; half characters are replaced.

    "Bytes that are not UTF-8 become U+FFFD."
    """
    text = "seen\x1b[2J\x1b]0;t\x07A\rB\b\0é😀\u2028"
    codes = {"javascript": "console.log(t)", "python": "print(t)"}
    async for result in subject.each(codes, context={"t": text}):
        same(result.stdout, f"{text}\n", "stdout")
    if "javascript" in subject.languages:
        result = await subject.run("console.log('a\\ud800b')", language="javascript")
        same(result.stdout, "a\ufffdb\n", "stdout")


@promise(609)
async def much_output_is_whole_when_the_code_ends_at_once(subject: Subject) -> None:
    """Megabytes printed in the last statement are not lost.

    "What was printed before a kill is kept."
    """
    codes = {
        "javascript": "console.log('x'.repeat(3e6)); 1",
        "python": "print('x' * 3_000_000)\n1",
    }
    async for result in subject.each(codes, output_limit_bytes=8_000_000, timeout_ms=20_000):
        is_ok(result)
        holds(result.stdout == "x" * 3_000_000 + "\n", f"{result.stdout_bytes} bytes came")


@promise(610)
async def a_flood_of_output_does_no_harm(subject: Subject) -> None:
    """Output without end is bounded by the run's limits, and the host goes on meanwhile.

    "`output_limit_bytes`: output per stream: first half + last half."
    """
    codes = {
        "javascript": "for (;;) console.log('x'.repeat(1000))",
        "python": "while True:\n    print('x' * 1000)",
    }
    for language in subject.languages:
        beats = 0
        code = codes["python" if language == "python" else "javascript"]
        running = asyncio.ensure_future(subject.run(code, language=language, timeout_ms=400))
        while not running.done():
            await asyncio.sleep(0.02)
            beats += 1
        result = await running
        has_code(result, SandboxErrorCode.TIMEOUT)
        holds(len(result.stdout) < 1_100_000, f"{len(result.stdout)} characters kept")
        holds(beats > 5, f"the event loop was held: {beats} beats")
