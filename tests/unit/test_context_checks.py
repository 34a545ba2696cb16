"""The checker of contexts: JSON under plain names, a deep copy, everything else refused by name."""

from collections import OrderedDict
from types import MappingProxyType
from typing import Any

import pytest

from cloche.errors import InvalidRequestError
from cloche.frames import DEPTH_LIMIT
from cloche.snippets.context import check_context

LANGUAGES = ("javascript", "typescript", "python")


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def looped() -> Any:
    value: dict[str, Any] = {}
    value["again"] = [value]
    return value


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -1, 2**53, -(2**53), 1.5, -0.0, "", "é\0😀", [], {}, [None],
        {"": 1, "__proto__": {"a": [1, 2]}, "a b": None}, nested(DEPTH_LIMIT - 1),
    ],
)  # fmt: skip
def test_json_passes_unchanged(language: str, value: Any) -> None:
    assert check_context({"x": value}, language) == {"x": value}


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_context_is_an_empty_one(language: str) -> None:
    assert check_context(None, language) == {}
    assert check_context(MappingProxyType({"x": 1}), language) == {"x": 1}


def test_the_copy_is_deep_and_of_plain_types() -> None:
    class Text(str):
        pass

    inner = [1]
    given = {"x": OrderedDict(a=inner, b=(1, 2), c=Text("t"))}
    copy = check_context(given, "python")
    inner.append(2)
    assert copy == {"x": {"a": [1], "b": [1, 2], "c": "t"}}
    assert type(copy["x"]) is dict and type(copy["x"]["c"]) is str


@pytest.mark.case("api-04-bad-context")
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    ("value", "path"),
    [
        (print, "x"),
        ({1, 2}, "x"),
        (b"\xff", "x"),
        (1j, "x"),
        (object(), "x"),
        (float("nan"), "x"),
        (float("-inf"), "x"),
        ([{"a": float("inf")}], "x[0].a"),
        ("\ud800", "x"),
        ({"\udfff": 1}, "a key of x"),
        ({1: 2}, "x[1]"),
        ({None: 2}, "x[None]"),
        ({"a": [0, {1}]}, "x.a[1]"),
        (range(3), "x"),
        (nested(DEPTH_LIMIT + 1), "x[0]"),
        (nested(100_000), "x[0]"),
        (looped(), "x.again[0]"),
    ],
)
def test_what_is_not_json_is_refused_by_its_path(language: str, value: Any, path: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_context({"x": value}, language)
    assert path in caught.value.message
    assert len(caught.value.message) < 500
    assert caught.value.retry_safe


@pytest.mark.parametrize("language", LANGUAGES[:2])
@pytest.mark.parametrize(
    "value", [2**53 + 1, -(2**53) - 1, 10**5000], ids=["over", "under", "long"]
)
def test_an_integer_that_javascript_cannot_hold_is_refused(language: str, value: int) -> None:
    with pytest.raises(InvalidRequestError, match=r"x\.a\[0\] .*2\^53"):
        check_context({"x": {"a": [value]}}, language)


def test_python_takes_integers_of_as_many_digits_as_a_value_may_have() -> None:
    assert check_context({"x": 10**4299}, "python") == {"x": 10**4299}
    with pytest.raises(InvalidRequestError, match="x"):
        check_context({"x": 10**4300}, "python")


@pytest.mark.case("api-05-context-keys")
@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize(
    "name",
    ["__proto__", "", "a-b", "1x", "x=globalThis.hit=1", "a\nb", "a.b", "\u200bz", "\uff45val",
     " x", "x;", "class", "await", "import", "None-", "\ud800", "x\0"],
)  # fmt: skip
def test_a_name_that_is_no_identifier_or_is_reserved_is_refused(language: str, name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_context({"fine": 1, name: 1}, language)
    assert repr(name) in caught.value.message


@pytest.mark.parametrize("name", [1, None, b"x", ("x",), 1.5])
def test_a_name_that_is_no_text_is_refused(name: Any) -> None:
    with pytest.raises(InvalidRequestError, match="is no name"):
        check_context({name: 1}, "python")


@pytest.mark.parametrize("context", [[1], "x", 5, {1}, b"", True])
def test_a_context_that_is_no_mapping_is_refused(context: Any) -> None:
    with pytest.raises(InvalidRequestError, match="must be a mapping"):
        check_context(context, "javascript")


@pytest.mark.parametrize(
    ("language", "taken", "refused"),
    [
        ("python", ["let", "match", "type", "undefined", "JSON", "é", "_"], ["None", "lambda"]),
        ("javascript", ["None", "lambda", "async", "of", "é", "$", "$x1"], ["let", "undefined"]),
        ("typescript", ["None", "self_", "as", "_"], ["let", "JSON", "globalThis", "eval"]),
    ],
)
def test_what_is_reserved_depends_on_the_language(
    language: str, taken: list[str], refused: list[str]
) -> None:
    assert check_context(dict.fromkeys(taken, 1), language) == dict.fromkeys(taken, 1)
    for name in refused:
        with pytest.raises(InvalidRequestError):
            check_context({name: 1}, language)
