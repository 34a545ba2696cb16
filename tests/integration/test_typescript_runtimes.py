"""One text, one value: transformed TypeScript on every runtime that is here, outside of boxes."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cloche.environments import runtimes
from cloche.source import Transformed, transform

SNIPPETS = Path(__file__).parent.parent / "data" / "typescript_snippets.txt"
ARGUMENTS = {"bun": [], "node": [], "deno": ["run", "--quiet", "--no-check", "--allow-all"]}
DRIVER = """
import fs from "node:fs";
const told = [];
for (const path of JSON.parse(fs.readFileSync(process.argv[2], "utf8"))) {
  try {
    const { default: value } = await import(path);
    told.push({ value: value === undefined ? null : JSON.parse(JSON.stringify(value) ?? "null") });
  } catch (error) {
    told.push({ error: String(error) });
  }
}
console.log("told " + JSON.stringify(told));
process.exit(0);
"""


def snippets() -> list[tuple[str, str]]:
    found, lines = [], []
    for line in SNIPPETS.read_text().splitlines():
        if line.startswith("=== "):
            found.append(("\n".join(lines), line[4:]))
            lines = []
        elif lines or not line.startswith("# "):
            lines.append(line)
    return found


@pytest.mark.case("ts-01-enum-namespace")
@pytest.mark.case("ts-03-decorators")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_every_snippet_has_its_value_on_every_runtime(name: str, tmp_path: Path) -> None:
    runtime = runtimes.find_runtime(name)
    if runtime is None:
        pytest.skip(f"runtime-{name}: not installed")
    assert len(snippets()) > 150
    paths = []
    for index, (code, _) in enumerate(snippets()):
        result = transform(code, "typescript")
        module = tmp_path / f"{index}.mjs"
        module.write_text(
            result.code if isinstance(result, Transformed) else "throw new Error('refused')"
        )
        paths.append(str(module))
    (tmp_path / "driver.mjs").write_text(DRIVER)
    (tmp_path / "paths.json").write_text(json.dumps(paths))
    ended = subprocess.run(
        [
            str(runtime.host_path),
            *ARGUMENTS[name],
            str(tmp_path / "driver.mjs"),
            str(tmp_path / "paths.json"),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    lines = [line for line in ended.stdout.splitlines() if line.startswith("told ")]
    assert lines, ended.stderr[-2000:]
    told: list[dict[str, Any]] = json.loads(lines[0].removeprefix("told "))
    wrong = []
    for (code, expected), found in zip(snippets(), told, strict=True):
        if expected == "!":
            right = "error" in found
        elif expected == "*":
            right = "value" in found
        else:
            right = found == {"value": json.loads(expected)}
        if not right:
            wrong.append((code, expected, found))
    assert not wrong
