"""What the documents show: every command and every piece of Python in them, tried."""

import ast
import asyncio
import inspect
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import cloche
from needs import BOX, JOB, needs

ROOT = Path(__file__).parents[2]
# Document → how many values its Python promises.
DOCUMENTS = {
    "README.md": 7,
    "docs/egress.md": 1,
    "docs/jobs.md": 0,
    "docs/snippets.md": 2,
    "examples/failing-tests/README.md": 0,
    "examples/hostile/README.md": 0,
    "examples/python-package/README.md": 0,
    "examples/vite-react/README.md": 0,
}
# Documents that a test of its own tries.
TRIED_BY = {
    "docs/telemetry.md": "tests/integration/test_telemetry_otlp.py",
    "examples/grader/README.md": "tests/acceptance/test_map.py",
    "examples/rule-engine/README.md": "tests/acceptance/test_snippet_examples.py",
    "examples/template/README.md": "tests/acceptance/test_snippet_examples.py",
    "examples/tool-call/README.md": "tests/acceptance/test_snippet_examples.py",
}
# Commands that have a test of their own, or go on until they are stopped.
TRIED_ELSEWHERE = ("make ", "pip install ", "python3 -m http.server ")
# Part of a command → how it ends; all others end with 0.
EXIT_CODES = {"job run examples/failing-tests": 1, "n.toFixd": 1, "10**9": 137}
pytestmark = [
    needs(*BOX, *JOB, "runtime-bun", "runtime-python"),
    # The first jobs of a fresh machine fetch pnpm and the packages; later ones take seconds.
    pytest.mark.timeout(240),
]


def blocks(document: str, language: str) -> list[str]:
    """The fenced blocks of a language."""
    pieces = (ROOT / document).read_text().split(f"```{language}\n")[1:]
    return [piece.partition("\n```")[0] + "\n" for piece in pieces]


def commands(document: str) -> Iterator[tuple[str, str]]:
    """Each command (a quoted text may span lines) with the output that is shown below it."""
    for block in blocks(document, "console"):
        for piece in f"\n{block}".split("\n$ ")[1:]:
            lines = piece.splitlines()
            count = 1
            while not is_whole(command := "\n".join(lines[:count])):
                count += 1
            yield command, "\n".join(lines[count:])


def is_whole(command: str) -> bool:
    try:
        shlex.split(command, comments=True)
    except ValueError:
        return False
    return True


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that holds what the documents speak of; the current one."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    for name in ("path/of/project", "app"):
        project = shutil.copytree(ROOT / "examples/failing-tests", tmp_path / name)
        right = "return year % 4 === 0 && (year % 100 !== 0 || year % 400 === 0);"
        source = project / "src/leap.ts"
        source.write_text(source.read_text().replace("return year % 4 === 0;", right))
    (tmp_path / "cases").mkdir()
    (tmp_path / "cases/1.txt").write_text("1 2\n")
    (tmp_path / "solution.py").write_text("print(sum(map(int, input().split())))\n")
    (tmp_path / "data.json").write_text("[1, 2]")
    (tmp_path / "report.ts").write_text(
        "const data: number[] = await Bun.file('data.json').json();\n"
        "await Bun.write('out/report.txt', `${process.argv.slice(2)}: ${data.length}`);\n"
    )
    (tmp_path / "cloche.yaml").write_text(blocks("docs/jobs.md", "yaml")[0])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(command: str) -> subprocess.CompletedProcess[str]:
    if "--out" in command:
        for name in ("out", "results"):
            shutil.rmtree(name, ignore_errors=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
        timeout=230,
        check=False,
    )


# Each once: several documents show how the main job is run.
COMMANDS = {command: shown for name in DOCUMENTS for command, shown in commands(name)}
TRIED_HERE = [each for each in COMMANDS if not each.startswith(TRIED_ELSEWHERE)]


@pytest.mark.parametrize("command", TRIED_HERE)
def test_a_command_of_a_document_ends_as_it_says(command: str, place: Path) -> None:
    if command.startswith("grep"):  # it looks at what the command above it has left
        assert run("cloche job run examples/hostile --out out").returncode == 0
    done = run(command)
    said = done.stdout + done.stderr
    expected = [code for part, code in EXIT_CODES.items() if part in command] or [0]
    assert [done.returncode] == expected, said
    if "job" not in command and COMMANDS[command]:
        assert said.rstrip("\n") == COMMANDS[command].rstrip("\n")
    if command.startswith("grep"):
        assert said.count("blocked\n") == 14


def test_no_command_of_a_document_is_overlooked() -> None:
    shown_count = sum((ROOT / name).read_text().count("\n$ ") for name in DOCUMENTS)
    assert sum(len(list(commands(name))) for name in DOCUMENTS) == shown_count
    assert len(TRIED_HERE) >= 14


def test_no_document_is_overlooked() -> None:
    found = {
        str(path.relative_to(ROOT))
        for pattern in ("*.md", "docs/**/*.md", "examples/*/README.md")
        for path in ROOT.glob(pattern)
        if any(f"```{language}\n" in path.read_text() for language in ("console", "python"))
    }
    assert found == DOCUMENTS.keys() | TRIED_BY.keys()
    for document, test in TRIED_BY.items():
        name = Path(document).parent.name if document.startswith("examples/") else document
        assert name in (ROOT / test).read_text()


def test_the_report_of_the_readme_reads_its_file_and_delivers_its_own(place: Path) -> None:
    (command,) = [each for each, _ in commands("README.md") if "report.ts" in each]
    assert run(command).returncode == 0
    assert (place / "results/out/report.txt").read_text() == "--month,5: 2"


def test_the_spec_of_the_document_runs(place: Path) -> None:
    done = run("cloche job run -f cloche.yaml")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_the_readme_installs_is_there_to_be_installed() -> None:
    (command,) = [each for each, _ in commands("README.md") if each.startswith("pip install")]
    wanted = shlex.split(command)[-1]
    assert wanted.startswith(".[")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    for name in wanted[2:-1].split(","):
        assert extras[name]


# Python, with the value of an expression behind it: `2 + 2  # 4`.


class Checks(ast.NodeTransformer):
    """Makes a call of `check(value, promised)` of each such line."""

    def __init__(self, block: str) -> None:
        self._lines = block.splitlines()

    def visit_Expr(self, statement: ast.Expr) -> ast.Expr:
        assert statement.end_lineno is not None
        promised = self._lines[statement.end_lineno - 1].partition("  # ")[2]
        if not promised:
            return statement
        arguments = [statement.value, ast.parse(promised, mode="eval").body]
        call = ast.Call(ast.Name("check", ast.Load()), arguments, [])
        return ast.fix_missing_locations(ast.copy_location(ast.Expr(call), statement))


def holds(value: Any, promised: Any) -> bool:
    if isinstance(promised, tuple):
        return len(value) == len(promised) and all(map(holds, value, promised))
    if isinstance(promised, str) and promised.endswith("…"):
        return str(value).startswith(promised[:-1])
    return bool(value == promised)


def run_python(block: str) -> int:
    """Runs it, `await` at its top included; returns how many promises were kept."""
    kept: list[bool] = []

    def check(value: Any, promised: Any) -> None:
        assert holds(value, promised), f"{value!r} is not {promised!r}"
        kept.append(True)

    tree = Checks(block).visit(ast.parse(block))
    code = compile(tree, "document", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)

    async def run_it() -> None:
        ended = eval(code, {"cloche": cloche, "check": check})
        if inspect.isawaitable(ended):
            await ended

    asyncio.run(run_it())
    return len(kept)


@pytest.mark.parametrize(
    ("document", "promises_count"),
    [item for item in DOCUMENTS.items() if blocks(item[0], "python")],
)
def test_the_python_of_a_document_does_what_it_says(
    document: str, promises_count: int, place: Path
) -> None:
    kept_count = 0
    for block in blocks(document, "python"):
        shutil.rmtree("out", ignore_errors=True)
        kept_count += run_python(block)
    assert kept_count == promises_count


def test_a_promise_that_is_not_kept_is_noticed() -> None:
    assert run_python("x = 1\nx, 'the run took 3 ms'  # 1, 'the run took …'") == 1
    with pytest.raises(AssertionError, match="1 is not 2"):
        run_python("x = 1\nx  # 2")
