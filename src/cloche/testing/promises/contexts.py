"""Context: JSON values under names, as globals of the code."""

from __future__ import annotations

from typing import Any, Final

from cloche.testing.claims import describe, has_value, holds, refused
from cloche.testing.subject import Subject, promise

DATA: Final[dict[str, Any]] = {
    "text": "é😀\0\u2028'\"\\`${1}</script>",
    "number": -1.5e-7,
    "big": 2**53,
    "nothing": None,
    "yes": True,
    "nested": {"": [[], {}], "__proto__": {"polluted": 1}, "a b": [None]},
}


@promise(301)
async def a_context_arrives_as_it_is(subject: Subject) -> None:
    """Every JSON value is a global of the code, under its name.

    "JSON values under names; globals that the code may shadow; deep copies."
    """
    for language in subject.languages:
        for name, value in DATA.items():
            has_value(await subject.run(name, {name: value}, language=language), value)


@promise(302)
async def code_may_shadow_a_name_of_the_context(subject: Subject) -> None:
    """The code may declare a name that the context has, or assign to it.

    "JSON values under names; globals that the code may shadow; deep copies."
    """
    codes = {
        "javascript": ("const x = 1; let y = 2; x + y", "x = 1; y = 2; x + y"),
        "python": ("x = 1\ny = 2\nx + y", "def x():\n    return 1\ny = 2\nx() + y"),
    }
    for language in subject.languages:
        for code in codes["python" if language == "python" else "javascript"]:
            has_value(await subject.run(code, {"x": "a", "y": "b"}, language=language), 3)


@promise(303)
async def code_changes_its_own_copy_alone(subject: Subject) -> None:
    """What the code does to a value of the context is seen by nobody else.

    "JSON values under names; globals that the code may shadow; deep copies."
    """
    codes = {
        "javascript": "x.a.push(3); delete x.b; x",
        "python": "x['a'].append(3)\ndel x['b']\nx",
    }
    given = {"x": {"a": [1], "b": 2}}
    for _ in range(2):
        async for result in subject.each(codes, context=given):
            has_value(result, {"a": [1, 3]})
    holds(given == {"x": {"a": [1], "b": 2}}, f"the caller's own was changed: {given}")


@promise(304)
async def functions_see_the_context(subject: Subject) -> None:
    """The names are globals, seen in functions too.

    "JSON values under names; globals that the code may shadow; deep copies."
    """
    codes = {
        "javascript": "function f() { return x + globalThis.x } f()",
        "python": "def f():\n    return x + 1\nf()",
    }
    async for result in subject.each(codes, context={"x": 1}):
        has_value(result, 2)


@promise(305)
async def a_wrong_context_is_refused_by_name(subject: Subject) -> None:
    """A name that is no identifier, reserved, or `__proto__`, and a value that is not JSON.

    "A name that is no identifier, is reserved, or is `__proto__`, a value that is not JSON, and for
    JavaScript an integer over 2^53, is refused by name."
    """
    loop: list[Any] = []
    loop.append(loop)
    for language in subject.languages:
        reserved = "lambda" if language == "python" else "typeof"
        for context, told in (
            ({"a-b": 1}, "a-b"), ({"": 1}, "''"), ({"1a": 1}, "1a"), ({reserved: 1}, reserved),
            ({"__proto__": 1}, "__proto__"), ({1: 2}, "1"), ({"x": print}, "x"), ({"x": {1}}, "x"),
            ({"x": b"y"}, "x"), ({"x": float("nan")}, "x"), ({"x": {1: 2}}, "x"),
            ({"x": [0, object()]}, "x[1]"), ({"x": "\ud800"}, "x"), ({"x": loop}, "x"),
        ):  # fmt: skip
            with refused("context", told):
                await subject.run("1", context, language=language)
        for wrong in ([1], "x", 5):
            with refused("context"):
                await subject.run("1", wrong, language=language)


@promise(306)
async def integers_are_exact_or_refused(subject: Subject) -> None:
    """An integer that JavaScript cannot hold is refused there, and exact in Python.

    "… for JavaScript an integer over 2^53, is refused by name."
    """
    big = 2**53 + 1
    for language in subject.languages:
        if language == "python":
            has_value(await subject.run("x + 1", {"x": big}, language=language), big + 1)
        else:
            with refused("x", "2^53"):
                await subject.run("x", {"x": big}, language=language)


@promise(307, needs=("javascript",))
async def a_context_pollutes_nothing(subject: Subject) -> None:
    """Data named `__proto__` or `constructor` below a name stays data.

    "JSON values under names; globals that the code may shadow; deep copies."
    """
    context = {"x": {"__proto__": {"polluted": 1}, "constructor": {"prototype": {"polluted": 2}}}}
    code = "[typeof ({}).polluted, Object.keys(x).length, typeof [].constructor]"
    result = await subject.run(code, context, language="javascript")
    has_value(result, ["undefined", 2, "function"])


@promise(308)
async def nothing_of_the_harness_is_a_global(subject: Subject) -> None:
    """Code finds no name that Cloche needs for itself.

    "Nothing printed or written to a file can become the value."
    """
    codes = {
        "javascript": "Object.getOwnPropertyNames(globalThis)"
        ".filter(name => /nonce|harness|cloche|frame/i.test(name)).join()",
        "python": "','.join(n for n in ('nonce', 'request', 'frame') if n in globals())",
    }
    for language in subject.languages:
        if language == "python" and subject.kind == "worker":
            continue  # its engine has no globals()
        code = codes["python" if language == "python" else "javascript"]
        has_value(await subject.run(code, {"x": 1}, language=language), "")


@promise(309)
async def a_large_context_arrives_whole(subject: Subject) -> None:
    """Megabytes of context are no trouble.

    "JSON values under names; globals that the code may shadow; deep copies."
    """
    codes = {"javascript": "x.join('').length", "python": "len(''.join(x))"}
    data = {"x": ["é" * 1000] * 2000}
    async for result in subject.each(codes, context=data, memory_limit_mb=256, timeout_ms=20_000):
        holds(result.value == 2_000_000, describe(result))
