"""Threat: what a guest prints or writes is taken for its value or its fate."""

import pytest

import cloche

FRAMES = [
    '{"ok":true,"value":"FORGED"}',
    '{"ok":true,"result":"FORGED","exitCode":0}',
    "__RESULT__=FORGED",
    "__EXIT_CODE__=0",
]


# https://github.com/KeeperHub/keeperhub/pull/1521
@pytest.mark.case("out-09-result-forgery")
@pytest.mark.parametrize("number", [1, 2])
def test_what_is_printed_stays_output_and_becomes_no_value(shared_sandbox, number):
    stream = "stdout" if number == 1 else "stderr"
    code = f"""
const fs = require("node:fs");
const frames = {FRAMES!r};
for (const frame of frames) fs.writeSync({number}, frame + "\\n");
process.on("exit", () => {{ for (const frame of frames) fs.writeSync({number}, frame + "\\n"); }});
process.exit(0);
"the real value";
"""
    result = shared_sandbox.run(code)
    assert (result.ok, result.value) == (True, None)
    assert getattr(result, stream).splitlines() == FRAMES * 2


@pytest.mark.case("out-09-result-forgery")
@pytest.mark.parametrize("number", range(3, 12))
@pytest.mark.parametrize("language", ["javascript", "python"])
def test_a_frame_without_the_nonce_is_no_result(shared_sandbox, number, language):
    """Python writes with os.write, JavaScript with writeSync, on every descriptor there may be."""
    code = {
        "javascript": f"""
const fs = require("node:fs");
for (const frame of {FRAMES!r}) {{
  try {{ fs.writeSync({number}, frame); }} catch {{}}
  const bytes = Buffer.from(frame), head = Buffer.alloc(20);
  head.writeUInt32BE(bytes.length, 16);
  try {{ fs.writeSync({number}, Buffer.concat([head, bytes])); }} catch {{}}
}}
process.exit(0);
""",
        "python": f"""
import os, struct
for frame in {FRAMES!r}:
    for data in (frame.encode(), bytes(16) + struct.pack(">I", len(frame)) + frame.encode()):
        try:
            os.write({number}, data)
        except OSError:
            pass
os._exit(0)
""",
    }[language]
    result = shared_sandbox.run(code, language=language)
    assert result.value is None
    if number == 4:  # the result channel itself
        assert not result.ok
        assert result.error_code is cloche.SandboxErrorCode.EXECUTION_ERROR
        assert "result channel" in result.error


@pytest.mark.parametrize("after", ["", "os.write(4, b'x')"])
def test_bytes_before_or_after_the_frame_spoil_it(shared_sandbox, after):
    before = "" if after else "os.write(4, b'x')"
    code = f"import atexit, os\n{before}\nclass Late(str):\n  pass\n'value'"
    if after:
        code = (
            "import os, threading, time\n"
            "threading.Thread(target=lambda: [time.sleep(0.0001) or os.write(4, b'x')"
            " for _ in range(100)], daemon=True).start()\ntime.sleep(0.02)\n'value'"
        )
    result = shared_sandbox.run(code, language="python")
    assert (result.ok, result.value) == (False, None)
    assert result.error_code is cloche.SandboxErrorCode.EXECUTION_ERROR


# https://github.com/TencentCloud/CubeSandbox/pull/1238
@pytest.mark.case("out-10-exit-code-forgery")
@pytest.mark.parametrize("language", ["javascript", "python"])
def test_the_exit_code_is_the_kernels_word(shared_sandbox, language):
    lines = ["__RC__=0", "exit_code: 0", "__EXIT_CODE__=0"]
    code = {
        "python": f"import os\nprint(*{lines!r}, sep='\\n', flush=True)\nos._exit(3)",
        "javascript": f"for (const line of {lines!r}) console.log(line);\nprocess.exit(3);",
    }[language]
    result = shared_sandbox.run(code, language=language, mode="program")
    assert (result.ok, result.exit_code) == (False, 3)
    assert result.error_code is cloche.SandboxErrorCode.EXECUTION_ERROR
    assert result.stdout.splitlines() == lines


@pytest.mark.case("out-10-exit-code-forgery")
@pytest.mark.parametrize("mode", ["program", "snippet"])
def test_a_frame_of_success_does_not_save_a_guest_that_failed(shared_sandbox, mode):
    """Python's frames lead to the nonce: the guest may choose its value, never its fate.

    Of a snippet the frame is the last word: what would have come after it never happens.
    """
    code = """
import os, sys, struct, signal
frame, nonce = sys._getframe(), None
while frame is not None:
    for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
        if isinstance(value, dict) and "nonce" in value:
            nonce = value["nonce"]
        elif isinstance(value, (bytes, bytearray)) and len(value) == 16:
            nonce = value.hex()
    frame = frame.f_back
if nonce:
    body = b'{"ok":true,"value":"FORGED"}'
    os.write(4, bytes.fromhex(nonce) + struct.pack(">I", len(body)) + body)
print("after", flush=True)
os.kill(os.getpid(), signal.SIGSEGV)
"""
    result = shared_sandbox.run(code, language="python", mode=mode)
    if mode == "snippet" and result.ok:  # else it was quicker than its end
        assert (result.value, result.exit_code, result.signal) == ("FORGED", 0, None)
        return
    assert (result.ok, result.value, result.signal) == (False, None, 11)
    assert result.error_code is cloche.SandboxErrorCode.EXECUTION_ERROR


@pytest.mark.parametrize("language", ["javascript", "python"])
def test_one_well_formed_frame_with_another_nonce_is_no_result(shared_sandbox, language):
    body = b'{"ok":true,"value":"FORGED"}'
    frame = list(bytes(16) + len(body).to_bytes(4, "big") + body)
    code = {
        "javascript": f'require("node:fs").writeSync(4, new Uint8Array({frame})); process.exit(0)',
        "python": f"import os; os.write(4, bytes({frame})); os._exit(0)",
    }
    result = shared_sandbox.run(code[language], language=language)
    assert result.value is None
    assert result.error_code is cloche.SandboxErrorCode.EXECUTION_ERROR
    assert "result channel" in result.error
