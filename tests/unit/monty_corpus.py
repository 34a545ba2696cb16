"""The snippets by which Monty is measured against CPython, and the document that tells the result.

`python tests/unit/monty_corpus.py` (with `src` on the path) writes docs/python-subset.md and
tests/data/monty_known.json anew; what is then to be read is the difference.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CORPUS = ROOT / "tests/data/monty_corpus.txt"
KNOWN = ROOT / "tests/data/monty_known.json"
DOCUMENT = ROOT / "docs/python-subset.md"
REFERENCE = Path(__file__).with_name("monty_reference.py")
RUNNER = Path(__file__).with_name("monty_runner.py")
HINT = "use the process sandbox"
# The words and places of errors differ between versions of CPython too; these were seen on 3.11.
WORDING = ("words", "line", "column")
MEASURED_ON = (3, 11)


@dataclass(frozen=True)
class Snippet:
    group: str
    code: str


def snippets() -> list[Snippet]:
    """The corpus: groups of lines that are snippets, and of snippets with `---` between them."""
    found: list[Snippet] = []
    for block in CORPUS.read_text().removeprefix("=== ").split("\n=== "):
        title, _, body = block.partition("\n")
        group = title.removesuffix(" (one a line)")
        parts = body.split("\n") if group != title else body.split("\n---\n")
        found += [Snippet(group, part) for part in parts]
    return found


def request(code: str, **fields: Any) -> dict[str, Any]:
    return {
        "code": code,
        "context": {},
        "tools": [],
        "value_limit_bytes": 1 << 20,
        "depth_limit": 256,
        "digit_limit": 4300,
        "memory_limit_bytes": 128 << 20,
        "network": False,
        **fields,
    }


Result = tuple[dict[str, Any], str, str]


def on_cpython(codes: list[str]) -> list[Result]:
    done = subprocess.run(
        [sys.executable, "-I", str(REFERENCE)],
        input=json.dumps(codes),
        capture_output=True,
        text=True,
        check=True,
    )
    return [(body, out, err) for body, out, err in json.loads(done.stdout)]


def run_monty(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs in one engine; see `monty_runner.py`."""
    done = subprocess.run(
        [sys.executable, str(RUNNER)],
        input=json.dumps(runs),
        capture_output=True,
        text=True,
        check=True,
    )
    results: list[dict[str, Any]] = json.loads(done.stdout)
    return results


def on_monty(codes: list[str]) -> list[Result]:
    results = run_monty([{"request": request(code)} for code in codes])
    return [(one["body"], one["stdout"], one["stderr"]) for one in results]


def kind_of(wanted: Result, got: Result) -> str:
    """`same`, `refused`, or how the second result differs from the first."""
    theirs, ours = wanted[0], got[0]
    if not ours["ok"] and ours["error"]["message"].endswith(HINT):
        return "refused"
    if theirs["ok"] != ours["ok"] or "exit" in theirs:
        return "result"
    if wanted[1:] != got[1:]:
        return "output"
    if theirs["ok"]:
        return "same" if repr(theirs.get("value")) == repr(ours.get("value")) else "result"
    before, after = theirs["error"], ours["error"]
    for kind, fields in (
        ("result", ("code", "name")),
        ("line", ("line",)),
        ("words", ("message",)),
        ("column", ("column",)),
    ):
        if any(before[field] != after[field] for field in fields):
            return kind
    return "same"


@lru_cache(maxsize=1)
def measured() -> list[tuple[Snippet, str, Result, Result]]:
    """Each snippet, how it differs, and what CPython and Monty made of it."""
    corpus = snippets()
    codes = [one.code for one in corpus]
    pairs = zip(corpus, on_cpython(codes), on_monty(codes), strict=True)
    return [(one, kind_of(wanted, got), wanted, got) for one, wanted, got in pairs]


def shown(code: str, limit: int = 70) -> str:
    """A snippet as a table shows it: in one line, cut to size."""
    text = code.replace("\n", "⏎").replace("|", "\\|").replace("`", "'")
    printable = "".join(one if one.isprintable() else f"\\u{ord(one):04x}" for one in text)
    return f"`{printable if len(printable) <= limit else printable[: limit - 1] + '…'}`"


def construct_of(result: Result) -> str:
    message: str = result[0]["error"]["message"]
    return message.partition(" is not in this engine's Python")[0].replace("|", "\\|")


def told(result: Result) -> str:
    body, out, _ = result
    if body["ok"]:
        text = json.dumps(body.get("value"), ensure_ascii=True)
    else:
        text = f"{body['error']['name']}: {body['error']['message']}"
    return shown(text if not out else f"{text}, printed {out!r}", 60)


def document() -> str:
    """The text of docs/python-subset.md."""
    rows = measured()
    groups: dict[str, Counter[str]] = defaultdict(Counter)
    refused: dict[str, str] = {}
    for snippet, kind, _, got in rows:
        groups[snippet.group][kind] += 1
        if kind == "refused":
            refused.setdefault(construct_of(got), snippet.code)
    known = [row for row in rows if row[1] in ("result", "output")]
    worded = [row for row in rows if row[1] in WORDING]
    total = Counter(kind for _, kind, _, _ in rows)
    lines = [
        INTRODUCTION.format(
            total=len(rows),
            same=total["same"],
            refused=total["refused"],
            known=len(known),
            worded=len(worded),
        ),
        "| group | snippets | same | refused | differ |",
        "|---|---|---|---|---|",
    ]
    for group, kinds in groups.items():
        count = sum(kinds.values())
        rest = count - kinds["same"] - kinds["refused"]
        lines.append(f"| {group} | {count} | {kinds['same']} | {kinds['refused']} | {rest} |")
    lines += [REFUSED, "| what the refusal names | seen in |", "|---|---|"]
    lines += [f"| {what} | {shown(code)} |" for what, code in sorted(refused.items())]
    lines += [DIFFERENT, "| snippet | CPython | worker |", "|---|---|---|"]
    lines += [f"| {shown(s.code)} | {told(a)} | {told(b)} |" for s, _, a, b in known]
    lines += [WORDED, "| snippet | differs in | CPython | worker |", "|---|---|---|---|"]
    lines += [f"| {shown(s.code)} | {k} | {told(a)} | {told(b)} |" for s, k, a, b in worded]
    return "\n".join(lines) + "\n"


INTRODUCTION = """# Python in the worker sandbox
The worker sandbox runs Python in Monty, an interpreter of a subset of the language, under a
millisecond per run. The process sandbox runs CPython. Both give the same value, output and error
for a snippet, or the worker refuses it before it runs: `SANDBOX_INVALID_CODE`, with what is
missing, where it is, and the words "use the process sandbox".

This page is made from {total} snippets that a test runs on both (CPython 3.11;
tests/data/monty_corpus.txt): {same} do the same, {refused} are refused, {known} are known to give
another value or output, {worded} to fail with other words or at another place of the same
statement. The test fails when one of them moves from its place.

What works: functions with all kinds of parameters, closures, decorators of functions, `lambda`,
`global` and `nonlocal`, comprehensions, `try`/`finally`, `with` on classes of the snippet, `match`,
`del` of items, f-strings with formats, unpacking, `:=`, classes with methods and most operators,
`@dataclass`, `namedtuple`, integers of any size, `async`/`await`, `asyncio.gather`, tools, and
these modules in part: asyncio, base64, binascii, bisect, collections, copy, dataclasses, datetime,
decimal, functools, hashlib, itertools, json, math, random, re, time, typing, unicodedata.

Large gaps: `yield`, base classes (own exception classes too), `@property` and other decorated
methods, `async for`/`with`, `eval`, files, and every other module.

A generator expression works where it is taken at once (`sum`, `any`, `next`, `join`, `list` …);
`any`, `all` and `next` stop where CPython stops.
"""
REFUSED = """
## Refused
"""
DIFFERENT = """
## Known to differ
Nothing in the text of these snippets tells that they differ. Also: `hash` of large numbers,
characters that Unicode got after version 14, the order of tasks that wait for different things, a
shorter traceback where a built-in calls back, and with tools an error's `type` and `repr` (refused
where they can be seen).
"""
WORDED = """
## Errors in other words or at another place
The name of the error is the same. Words follow CPython 3.14.
"""


def known() -> dict[str, str]:
    """How each snippet differs that does."""
    found: dict[str, str] = json.loads(KNOWN.read_text())
    return found


def main() -> None:
    different = {s.code: kind for s, kind, _, _ in measured() if kind not in ("same", "refused")}
    KNOWN.write_text(json.dumps(different, indent=1, ensure_ascii=True) + "\n")
    DOCUMENT.write_text(document())


if __name__ == "__main__":
    main()
