"""The memory limit holds for whatever holds memory, and is told from a crash."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import cloche

OVER = cloche.SandboxErrorCode.MEMORY_EXCEEDED
# Each holds far more than 128 MiB, 1 GiB at most, and says so if it gets there.
PYTHON = {
    "one bytes object": "held = b'x' * (600 << 20)",
    "many strings": "held = [str(n) * 100_000 for n in range(1000)]",
    "a dictionary": "held = {n: [n] for n in range(6_000_000)}",
    "shared memory": (
        "import mmap\nheld = mmap.mmap(-1, 600 << 20)\n"
        "for start in range(0, 600 << 20, 1 << 20): held.write(bytes(1 << 20))"
    ),
    "many children": (
        "import os, time\nfor _ in range(12):\n  if os.fork() == 0:\n"
        "    held = b'x' * (50 << 20)\n    time.sleep(0.3)\n    os._exit(0)\n"
        "assert all(os.wait()[1] == 0 for _ in range(12))"
    ),
    "threads": (
        "import threading\nheld = []\n"
        "def hold(): held.append(b'x' * (60 << 20))\n"
        "crew = [threading.Thread(target=hold) for _ in range(10)]\n"
        "for each in crew: each.start()\nfor each in crew: each.join()"
    ),
    "pipes": (
        "import os, fcntl\nheld = [os.pipe() for _ in range(480)]\n"
        "for _, end in held:\n  os.set_blocking(end, False)\n"
        "  try:\n    fcntl.fcntl(end, 1031, 1 << 20)\n    while True: os.write(end, bytes(65536))\n"
        "  except OSError: pass\nhog = b'x' * (200 << 20)"
    ),
}
JAVASCRIPT = {
    # https://github.com/laverdet/isolated-vm/issues/527
    "typed arrays": (
        "const held = []; for (let i = 0; i < 64; i++) held.push(new Uint8Array(16 << 20).fill(1));"
        "console.log('held'); held.length"
    ),
    # https://github.com/justjake/quickjs-emscripten/issues/255
    "strings": (
        "const held = []; for (let i = 0; i < 1024; i++) held.push(Buffer.alloc(1 << 19, 'x' + i)"
        ".toString('latin1')); console.log('held'); held.length"
    ),
    "objects": (
        "const held = []; for (let i = 0; i < 2e7; i++) held.push({ i, next: held[i - 1] });"
        "console.log('held'); held.length"
    ),
    "a buffer that is not shared": (
        "const held = new SharedArrayBuffer(700 << 20); new Uint8Array(held).fill(1);"
        "console.log('held'); held.byteLength"
    ),
    "WebAssembly memory": (
        "const held = new WebAssembly.Memory({ initial: 9000, maximum: 12000 });"
        "new Uint8Array(held.buffer).fill(1); console.log('held'); held.buffer.byteLength"
    ),
}


@pytest.mark.case("res-10-py-native-pow")
@pytest.mark.parametrize("holder", PYTHON)
def test_memory_is_limited_however_python_holds_it(shared_sandbox, holder):
    code = PYTHON[holder] + "\nprint('held')"
    # The control: with room for it, the same code does get there.
    if holder in ("one bytes object", "many children"):
        roomy = shared_sandbox.run(code, language="python", memory_limit_mb=1500, timeout_ms=15_000)
        assert roomy.stdout.endswith("held\n"), (roomy.error, roomy.stderr)
    result = shared_sandbox.run(code, language="python", timeout_ms=10_000)
    assert not result.ok
    assert "held" not in result.stdout
    assert result.error_code is OVER, (result.error, result.stderr)
    assert result.usage.peak_memory_bytes < 300 << 20


@pytest.mark.case("res-07-typed-arrays", "res-08-strings")
@pytest.mark.parametrize("holder", JAVASCRIPT)
def test_memory_is_limited_however_javascript_holds_it(shared_sandbox, holder):
    code = JAVASCRIPT[holder]
    if holder == "typed arrays":
        roomy = shared_sandbox.run(code, memory_limit_mb=2000, timeout_ms=15_000)
        assert roomy.value == 64, roomy.error
    result = shared_sandbox.run(code, timeout_ms=10_000)
    assert not result.ok
    assert "held" not in result.stdout
    # An engine may notice first and throw; then it is the code that failed.
    assert result.error_code in (OVER, cloche.SandboxErrorCode.EXECUTION_ERROR)
    assert result.usage.peak_memory_bytes < 300 << 20


def test_files_in_scratch_count_as_memory(shared_sandbox):
    code = """
for place in ("/workspace", "/tmp", "/dev/shm"):
    with open(place + "/file", "wb") as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
print("held")
"""
    fields = {"language": "python", "allow_fs": True, "scratch_limit_mb": 512, "timeout_ms": 10_000}
    assert shared_sandbox.run(code, memory_limit_mb=600, **fields).stdout == "held\n"
    result = shared_sandbox.run(code, memory_limit_mb=128, **fields)
    assert result.error_code is OVER, result.error
    assert result.stdout == ""


def test_memory_mapped_from_scratch_counts(shared_sandbox):
    code = """
import mmap
with open("/dev/shm/file", "w+b") as file:
    file.truncate(300 << 20)
    room = mmap.mmap(file.fileno(), 300 << 20)
    for start in range(0, 300 << 20, 4096):
        room[start] = 1
print("held")
"""
    result = shared_sandbox.run(
        code, language="python", allow_fs=True, scratch_limit_mb=512, timeout_ms=10_000
    )
    assert result.error_code is OVER, result.error
    assert result.stdout == ""


def test_a_child_that_is_out_of_memory_is_told_even_when_its_parent_goes_on(shared_sandbox):
    code = """
import os
if os.fork() == 0:
    held = b"x" * (600 << 20)
    os._exit(0)
os.wait()
"the parent went on"
"""
    result = shared_sandbox.run(code, language="python", timeout_ms=10_000)
    assert result.error_code is OVER


def test_a_crash_below_the_limit_is_no_memory_verdict(shared_sandbox):
    code = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    result = shared_sandbox.run(code, language="python")
    assert result.error_code is cloche.SandboxErrorCode.EXECUTION_ERROR
    assert result.signal == 9


# https://github.com/langbot-app/langbot-plugin-sdk/pull/97
@pytest.mark.case("res-26-benign-wasm-vmem")
@pytest.mark.parametrize("memory_limit_mb", [128, 512])
def test_webassembly_and_its_reservations_fit_under_the_limit(shared_sandbox, memory_limit_mb):
    """The control of all above: what is reserved is not held."""
    code = """
const bytes = new Uint8Array([0, 97, 115, 109, 1, 0, 0, 0, 1, 5, 1, 96, 0, 1, 127, 3, 2, 1, 0, 7,
  5, 1, 1, 102, 0, 0, 10, 6, 1, 4, 0, 65, 42, 11]);
const { instance } = await WebAssembly.instantiate(bytes);
return [typeof fetch, instance.exports.f()];
"""
    result = shared_sandbox.run(code, memory_limit_mb=memory_limit_mb)
    assert result.value == ["function", 42], result.error


def test_address_space_that_is_not_touched_is_free(shared_sandbox):
    code = "import mmap\nroom = mmap.mmap(-1, 8 << 30)\nlen(room)"
    result = shared_sandbox.run(code, language="python")
    assert result.value == 8 << 30, result.error


def test_a_neighbour_is_not_hit_by_the_limit_of_another(shared_sandbox):
    hog = PYTHON["one bytes object"]
    with ThreadPoolExecutor(2) as pool:
        over = pool.submit(shared_sandbox.run, hog, language="python", timeout_ms=10_000)
        fine = pool.submit(
            shared_sandbox.run, "import time\ntime.sleep(0.2)\nlen(b'x' * (60 << 20))",
            language="python",
        )  # fmt: skip
        assert over.result().error_code is OVER
        assert fine.result().value == 60 << 20
