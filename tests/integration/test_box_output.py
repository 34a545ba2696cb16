"""Output and values of any size cost the host a bounded amount."""

import resource

import pytest

import cloche

MIB = 1 << 20


def host_peak_bytes():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


# https://github.com/python-discord/snekbox/pull/81
@pytest.mark.case("res-17-stdout-flood")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", "for _ in range(300_000):\n    print('x' * 1023)"),
        ("javascript", "const line = 'x'.repeat(1023);\n"
                       "for (let i = 0; i < 300_000; i++) console.log(line);"),
        ("python", "import os\nwhile True:\n  os.write(2, b'x' * 65536)\n"
                   "  os.write(1, b'\\xff' * 65536)"),
    ],
)  # fmt: skip
def test_a_flood_of_output_is_cut_and_does_not_fill_the_host(shared_sandbox, language, code):
    shared_sandbox.run(code, language=language, timeout_ms=100)
    before = host_peak_bytes()
    result = shared_sandbox.run(
        code, language=language, timeout_ms=2_500, output_limit_bytes=256 * 1024
    )
    assert host_peak_bytes() - before < 16 * MIB
    assert result.error_code in (None, cloche.SandboxErrorCode.TIMEOUT)
    assert result.stdout_truncated
    assert result.stdout_bytes > 20 * MIB
    assert len(result.stdout.encode("utf-8", "replace")) <= 3 * 256 * 1024 + 1024
    assert len(result.stdout) <= 256 * 1024 + 1024
    assert len(result.stderr) <= 256 * 1024 + 1024


def test_a_flood_that_nobody_reads_is_no_flood_of_memory_in_the_box(shared_sandbox):
    """The control of the limit: what is printed leaves the box, so it does not count there."""
    code = "import os\nfor _ in range(3000): os.write(1, b'x' * 65536)"
    result = shared_sandbox.run(code, language="python", memory_limit_mb=64, timeout_ms=10_000)
    assert result.ok, result.error
    assert result.stdout_bytes == 3000 * 65536


# https://github.com/laverdet/isolated-vm/issues/296
@pytest.mark.case("res-20-huge-return")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "({ a: 'x'.repeat(24e6), b: new Array(2e6).fill(7) });"),
        ("javascript", "'x'.repeat(1048577)"),
        ("javascript", "new Array(2e6).fill(null)"),
        ("python", "{'a': 'x' * 24_000_000, 'b': [7] * 2_000_000}"),
        ("python", "'x' * 1048577"),
        ("python", "10 ** 5000"),
    ],
)
def test_a_value_over_its_limit_is_refused_and_not_delivered(shared_sandbox, language, code):
    shared_sandbox.run("'x' * 1000", language="python")
    before = host_peak_bytes()
    result = shared_sandbox.run(code, language=language, memory_limit_mb=512, timeout_ms=8_000)
    assert host_peak_bytes() - before < 16 * MIB
    assert result.error_code is cloche.SandboxErrorCode.VALUE_TOO_LARGE, result.error
    assert result.value is None


# https://github.com/rubyjs/mini_racer/pull/198
@pytest.mark.case("res-23-cyclic-deep-return")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "const o = { name: 'loop' }; o.self = o; o.list = [o, { o }]; o;"),
        (
            "javascript",
            "let top = {}, p = top; for (let i = 0; i < 2e4; i++) p = p.n = {}; top;",
        ),
        ("python", "o = {'name': 'loop'}\no['self'] = [o]\no"),
        ("python", "top = p = []\nfor _ in range(50_000):\n  q = []\n  p.append(q)\n  p = q\ntop"),
    ],
)
def test_a_value_without_an_end_is_a_clean_error(shared_sandbox, language, code):
    result = shared_sandbox.run(code, language=language)
    assert result.error_code in (
        cloche.SandboxErrorCode.EXECUTION_ERROR,
        cloche.SandboxErrorCode.VALUE_TOO_LARGE,
    )
    assert result.value is None
    assert result.error


# https://github.com/langchain-ai/deepagentsjs/issues/558
@pytest.mark.case("res-24-special-values")
def test_values_that_json_does_not_know_take_their_documented_form(shared_sandbox):
    code = """
({ nan: NaN, inf: -Infinity, zero: -0, date: new Date(0), map: new Map([["a", 1]]),
   set: new Set([1]), und: undefined, nul: null, re: /x/g, buf: new Uint8Array([0, 255]),
   err: new TypeError("t"), inv: new Date(NaN), lone: "\\ud800", fn() {}, sym: Symbol("s"),
   ["__proto__"]: { polluted: 1 } })
"""
    result = shared_sandbox.run(code)
    assert result.value == {
        "nan": None,
        "inf": None,
        "zero": 0,
        "date": "1970-01-01T00:00:00.000Z",
        "map": {},
        "set": {},
        "nul": None,
        "re": {},
        "buf": {"0": 0, "1": 255},
        "err": {},
        "inv": None,
        "lone": "\ufffd",
        "__proto__": {"polluted": 1},
    }


@pytest.mark.case("res-24-special-values")
def test_a_bigint_is_an_error_that_names_its_path(shared_sandbox):
    result = shared_sandbox.run("({ nested: { big: [1, 2n] } })")
    assert result.error_code is cloche.SandboxErrorCode.EXECUTION_ERROR
    assert "nested.big[1]" in result.error


# https://github.com/n8n-io/n8n/pull/33969
@pytest.mark.case("res-25-getter-toJSON")
def test_what_runs_during_conversion_makes_data_alone(shared_sandbox):
    code = """
({ fake: { __type: "Map", __isMap: true, __name: "Error", __message: "forged" },
   get late() { return "got"; }, toJSON() { return { ...this, toJSON: undefined }; } })
"""
    result = shared_sandbox.run(code)
    assert result.value == {
        "fake": {"__type": "Map", "__isMap": True, "__name": "Error", "__message": "forged"},
        "late": "got",
    }
