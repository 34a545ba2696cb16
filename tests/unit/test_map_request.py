"""A line of `cloche map`: what it may hold, and what it makes of the command's defaults."""

import os
from pathlib import Path
from typing import Any

import pytest

from cloche.cli.map_request import Defaults, Request, make_request, parse_line
from cloche.errors import InvalidRequestError


def defaults(folder: Path = Path(), **fields: Any) -> Defaults:
    plain = {"language": None, "mode": None, "context": {}, "has_programs": True}
    return Defaults(folder, **{**plain, **fields})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{oops", "line 7: not JSON"),
        (b"[1]", "line 7: must be a JSON object"),
        (b"null", "line 7: must be a JSON object"),
        (b'{"id": NaN}', "NaN is no JSON"),
        (b'{"id": 1e999}', "a number is too large"),
        (b'{"id": "\xff"}', "line 7: byte 8 is no UTF-8"),
        (b"[" * 100_000, "line 7: not JSON"),
        (b'{"id": ' + b"9" * 5000 + b"}", "line 7: not JSON"),
        (None, "line 7: more than 67108864 bytes"),
    ],
)
def test_a_line_that_is_no_object_is_refused_with_its_number(data: bytes | None, message: str):
    with pytest.raises(InvalidRequestError) as caught:
        parse_line(data, 7)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ({}, "a line has either code or file"),
        ({"code": "1", "file": "a.py"}, "a line has either code or file"),
        ({"code": None, "file": None}, "a line has either code or file"),
        (
            {"code": "1", "timeot_ms": 3},
            "timeot_ms: is no field of a line; did you mean timeout_ms",
        ),
        ({"code": "1", "tools": {}}, "tools: has no JSON form"),
        ({"code": "1", "signal": None}, "signal: has no JSON form"),
        ({"code": "1", "mounts": []}, "mounts: is for the command line"),
        ({"code": "1", "backend": "auto"}, "backend: is no field of a line"),
        ({"code": "1", "language": "cobol"}, "'cobol' is unknown; known: javascript"),
        ({"code": "1", "context": [1]}, "context: must be an object"),
        ({"code": "1", "files": {"a": {"encoding": "rot13", "content": ""}}}, "files['a']"),
        ({"code": "1", "files": {"a": {"encoding": "base64", "content": "%"}}}, "is no base64"),
        ({"file": "/etc/passwd"}, "is absolute"),
        ({"file": "../secret.py"}, "`..`"),
        ({"file": 3}, "must be str"),
        ({"file": "none.py"}, "file: none.py: No such file or directory"),
        ({"file": "folder"}, "file: folder is no regular file"),
        ({"file": "link.py"}, "file: link.py: "),
        ({"file": "way/out.py"}, "file: way/out.py: "),
        ({"file": "pipe.py"}, "file: pipe.py is no regular file"),
        ({"file": "large.py"}, "more than 8388608 bytes"),
        ({"file": "binary.py"}, "byte 0 is no UTF-8"),
        ({"file": "text.rb"}, "'.rb' are unknown"),
    ],
)
def test_a_line_that_cannot_be_run_is_refused(line: dict[str, Any], message: str, tmp_path: Path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "out.py").write_text("1")
    folder = tmp_path / "lines"
    (folder / "folder").mkdir(parents=True)
    (folder / "link.py").symlink_to("/etc/passwd")
    (folder / "way").symlink_to(outside)
    os.mkfifo(folder / "pipe.py")
    with (folder / "large.py").open("wb") as writer:
        writer.truncate(9_000_000)
    (folder / "binary.py").write_bytes(b"\xff")
    (folder / "text.rb").write_text("1")
    with pytest.raises(InvalidRequestError) as caught:
        make_request(line, defaults(folder))
    assert message in str(caught.value)


def test_a_line_wins_over_the_defaults_and_takes_the_rest_from_them(tmp_path: Path):
    (tmp_path / "a.py").write_text("print(1)")
    assert make_request({"code": "1", "id": 5}, defaults()) == Request(
        "1", None, {"language": "javascript", "mode": "snippet"}, True
    )
    assert make_request({"file": "a.py", "timeout_ms": 5}, defaults(tmp_path)) == Request(
        "print(1)", None, {"language": "python", "mode": "program", "timeout_ms": 5}, False
    )
    given = defaults(tmp_path, language="typescript", mode="snippet", context={"a": 1, "b": 2})
    assert make_request({"file": "a.py", "context": {"b": 3}}, given) == Request(
        "print(1)", {"a": 1, "b": 3}, {"language": "typescript", "mode": "snippet"}, True
    )
    line = {"code": "1", "language": "py", "mode": "program", "context": None}
    made = make_request(line, given)
    assert (made.fields, made.context) == ({"language": "python", "mode": "program"}, None)
    assert make_request({"file": "a.py"}, defaults(tmp_path, has_programs=False)).fields == {
        "language": "python",
        "mode": "snippet",
    }


def test_files_can_be_given_as_results_give_them():
    files = {
        "a": "text",
        "b": {"encoding": "utf-8", "content": "é"},
        "c": {"encoding": "base64", "content": "/w=="},
    }
    made = make_request({"code": "1", "files": files}, defaults())
    assert made.fields["files"] == {"a": "text", "b": "é", "c": b"\xff"}
