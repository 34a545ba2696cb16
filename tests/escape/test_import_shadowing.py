"""Threat: the guest's files stand in for the modules of Cloche's own programs in the box."""

import pytest

SHADOWS = ("json", "os", "re", "_json", "asyncio", "traceback", "dataclasses", "sitecustomize",
           "usercustomize", "encodings", "io", "python_rare", "signal", "struct")  # fmt: skip


# https://github.com/pydantic/monty/pull/735
@pytest.mark.case("esc-11-runner-import-shadow")
def test_no_module_of_the_workspace_runs_unless_the_program_imports_it(shared_sandbox):
    files = {f"{name}.py": f"print('shadow {name}')\nraise SystemExit(7)\n" for name in SHADOWS}
    result = shared_sandbox.run(
        "print('the program')", language="python", mode="program", files=files
    )
    assert (result.ok, result.stdout, result.exit_code) == (True, "the program\n", 0)


@pytest.mark.case("esc-11-runner-import-shadow")
def test_a_failing_program_is_told_by_the_real_modules(shared_sandbox):
    files = {f"{name}.py": "raise SystemExit(0)\n" for name in SHADOWS}
    result = shared_sandbox.run(
        "def f():\n  raise ValueError('real')\nf()", language="python", mode="program", files=files
    )
    assert not result.ok
    assert (result.exit_code, result.error_line) == (1, 2)
    assert "ValueError: real" in result.stderr


def test_the_workspace_is_where_a_program_imports_from(shared_sandbox):
    """The control: such a file does run when the program asks for it."""
    result = shared_sandbox.run(
        "import mine\nprint('the program')",
        language="python",
        mode="program",
        files={"mine.py": "print('mine')"},
    )
    assert result.stdout == "mine\nthe program\n"


BUN_FILES = {
    "bunfig.toml": 'preload = ["./shadow.js"]\n',
    ".env": "SHADOW=1\n",
    "tsconfig.json": '{"compilerOptions": {"paths": {"node:fs": ["./shadow.js"]}}}',
    "package.json": '{"imports": {"#x": "./shadow.js"}, "type": "commonjs"}',
    "shadow.js": "console.log('shadow');",
    "bun.mjs": "console.log('shadow');",
}


@pytest.mark.case("esc-11-runner-import-shadow")
def test_no_setting_of_the_workspace_runs_before_a_javascript_snippet(shared_sandbox):
    code = 'console.log(typeof require("node:fs").readSync, process.env.SHADOW);'
    result = shared_sandbox.run(code, files=BUN_FILES)
    assert (result.ok, result.stdout) == (True, "function undefined\n")


def test_the_settings_beside_a_javascript_program_are_the_programs_own(shared_sandbox):
    """The control: they are what the runtime reads, where it is asked to."""
    code = "console.log(process.env.SHADOW);"
    result = shared_sandbox.run(code, mode="program", files=BUN_FILES)
    assert (result.ok, result.stdout) == (True, "shadow\n1\n")


# What a program's environment may say to its own interpreter, it may say: it is the same guest.
@pytest.mark.parametrize(
    "env",
    [
        {"PYTHONPATH": "/workspace", "PYTHONSTARTUP": "/workspace/json.py", "PYTHONHOME": "/tmp"},
        {"PYTHONINSPECT": "1", "PYTHONWARNINGS": "error", "PYTHONUSERBASE": "/workspace"},
    ],
)
def test_the_interpreter_of_a_snippet_is_isolated_from_its_variables(shared_sandbox, env):
    files = {"json.py": "raise SystemExit(7)", "sitecustomize.py": "raise SystemExit(7)"}
    result = shared_sandbox.run("6 * 7", language="python", env=env, files=files)
    assert (result.ok, result.value) == (True, 42)
