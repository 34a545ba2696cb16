"""The half of `python.py` that most runs never need; executed by it on demand.

Errors as data, values that the C encoder refuses, top-level `return` and `await`. It may be loaded
after guest code has run, so it imports nothing but built-in modules, and what it is given may be
hostile: a value or an error that defends itself costs the guest its own result and nothing else.
"""

import sys
from _json import encode_basestring, encode_basestring_ascii, make_encoder

TYPE_CHECKING = False
if TYPE_CHECKING:
    import _ast
    from collections.abc import Callable
    from types import CodeType, TracebackType
    from typing import Any, NoReturn

MESSAGE_LIMIT = 8 * 1024
STACK_LIMIT = 16 * 1024
INVALID = "SANDBOX_INVALID_CODE"
FAILED = "SANDBOX_EXECUTION_ERROR"
LARGE = "SANDBOX_VALUE_TOO_LARGE"
SNIPPET = "snippet.py"
ONLY_AST = 0x400
TOP_LEVEL_AWAIT = 0x2000


# -- errors ------------------------------------------------------------------------------------


def failure_text(
    code: str,
    name: str,
    message: str,
    stack: str = "",
    place: "tuple[int | None, int | None]" = (None, None),
) -> str:
    """The frame's JSON for an error."""
    quoted = encode_basestring_ascii
    line, column = ("null" if number is None else str(number) for number in place)
    return (
        f'{{"ok":false,"error":{{"code":{quoted(code)},"name":{quoted(shortened(name, 256))},'
        f'"message":{quoted(shortened(message, MESSAGE_LIMIT))},'
        f'"stack":{quoted(shortened(stack, STACK_LIMIT))},"line":{line},"column":{column}}}}}'
    )


def shortened(text: str, limit: int) -> str:
    """Keep both ends: a traceback tells where at its start and what at its end."""
    if len(text) <= limit:
        return text
    half = limit // 2 - 16
    return f"{text[:half]}\n… (shortened) …\n{text[-half:]}"


class Collector:
    """A stand-in for stderr that keeps a bounded text: its start and its end."""

    encoding = "utf-8"
    errors = "backslashreplace"

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> None:
        """Add `text`."""
        self.text += shortened(text, STACK_LIMIT)
        if len(self.text) > 8 * STACK_LIMIT:
            self.text = self.text[: 2 * STACK_LIMIT] + self.text[-2 * STACK_LIMIT :]

    def flush(self) -> None:
        """Do nothing: nothing is behind this stream."""


def traceback_text(error: BaseException) -> str:
    """What the interpreter itself prints for an error: chains and groups included."""
    stream = Collector()
    real = sys.stderr
    sys.stderr = stream
    try:
        sys.__excepthook__(type(error), error, error.__traceback__)
    finally:
        sys.stderr = real
    return stream.text


def message_of(error: BaseException) -> str:
    """`str(error)`, whatever the guest made of it."""
    try:
        return str(error)
    except BaseException as second:
        return f"<its message cannot be read: {type(second).__name__}>"


def guest_part(trace: "TracebackType | None", filename: str) -> "TracebackType | None":
    """The traceback from the first frame of the guest's on."""
    while trace is not None and trace.tb_frame.f_code.co_filename != filename:
        trace = trace.tb_next
    return trace


def without_harness(trace: "TracebackType | None") -> "TracebackType | None":
    """The traceback without the frames of the files beside this one."""
    folder = sys._getframe().f_code.co_filename.rpartition("/")[0] + "/python"
    kept = None
    frames = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    for frame in reversed(frames):
        if not frame.tb_frame.f_code.co_filename.startswith(folder):
            frame.tb_next = kept
            kept = frame
    return kept


def position(
    trace: "TracebackType | None", filename: str, source: str
) -> "tuple[int | None, int | None]":
    """1-based (line, column) in `source` of the innermost frame that is in it."""
    found = None
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == filename:
            found = trace
        trace = trace.tb_next
    if found is None:
        return None, None
    line = found.tb_lineno
    offset = list(found.tb_frame.f_code.co_positions())[found.tb_lasti // 2][2]
    rows = source.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    if offset is None or not 0 < line <= len(rows):
        return line, None
    # The compiler counts bytes of UTF-8, people count characters.
    before = rows[line - 1].encode("utf-8", "surrogatepass")[:offset]
    return line, len(before.decode("utf-8", "ignore")) + 1


def error_text(error: BaseException, source: str, filename: str) -> str:
    """The frame's JSON for an exception that guest code let out; cuts our frames off it."""
    try:
        trace = without_harness(guest_part(error.__traceback__, filename))
        error.__traceback__ = trace
        place = position(trace, filename, source)
        stack = traceback_text(error)
        return failure_text(FAILED, type(error).__name__, message_of(error), stack, place)
    except BaseException:
        return failure_text(FAILED, "Exception", "the code raised something that cannot be read")


def syntax_text(error: BaseException) -> str:
    """The frame's JSON for code that does not compile."""
    line = column = None
    message = message_of(error)
    if isinstance(error, SyntaxError):
        line, column, message = error.lineno or None, error.offset, error.msg
        if column is not None and column < 1:
            column = None
    elif isinstance(error, (RecursionError, MemoryError)):
        message = "the code is nested too deeply"
    error.__traceback__ = error.__context__ = None
    name = type(error).__name__
    return failure_text(INVALID, name, message, traceback_text(error), (line, column))


def program_error_text(error: BaseException, data: bytes, path: str, compiling: bool) -> str:
    """The frame's JSON for a program's error; cuts our frames off it."""
    if compiling:
        return syntax_text(error)
    return error_text(error, data.decode("utf-8", "replace"), path)


# -- values ------------------------------------------------------------------------------------


class NoFormError(Exception):
    """A value has no JSON form; the text names the path."""


class TooLargeError(Exception):
    """A value is beyond a limit."""


def value_text(value: object, request: "dict[str, Any]") -> str:
    """The frame's JSON for a value that the C encoder did not take as it is."""
    try:
        plain = walk(value, "value", [], request["depth_limit"])
    except NoFormError as error:
        return failure_text(FAILED, "TypeError", str(error))
    except TooLargeError as error:
        return failure_text(LARGE, "ValueError", str(error))
    encode = make_encoder({}, no_default, encode_basestring, None, ":", ",", False, False, False)
    return checked("".join(encode(plain, 0)), request)


def no_default(value: object) -> "NoReturn":
    """Be json's `default` for values that were walked already."""
    raise TypeError(type(value).__name__)


def walk(value: object, path: str, above: list[object], limit: int) -> object:
    """Copy a value into plain JSON types by json's rules; NaN and Infinity become None."""
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return whole_number(value, path)
    if isinstance(value, float):
        plain = float.__float__(value)
        return plain if plain - plain == 0 else None
    if not isinstance(value, (list, tuple, dict)):
        kind = type(value).__name__
        hint = ": await it" if kind in ("coroutine", "Task", "Future") else ""
        if kind == "coroutine":
            value.close()  # type: ignore[attr-defined]  # or the interpreter complains on stderr
        raise NoFormError(f"{path}: {kind} has no JSON form{hint}")
    if any(value is one for one in above):
        raise NoFormError(f"{path}: the value holds itself")
    if len(above) >= limit:
        raise TooLargeError(f"the value is nested deeper than {limit} levels")
    above.append(value)
    copy: object
    if isinstance(value, dict):
        copy = {
            key_text(key, path): walk(inner, f"{path}[{key!r:.100}]", above, limit)
            for key, inner in value.items()
        }
    else:
        copy = [walk(inner, f"{path}[{i}]", above, limit) for i, inner in enumerate(value)]
    above.pop()
    return copy


def whole_number(value: int, path: str) -> int:
    """A plain int whose digits are within the interpreter's limit, which is the request's."""
    plain = int.__int__(value)
    try:
        int.__repr__(plain)
    except ValueError:
        limit = sys.get_int_max_str_digits()
        raise TooLargeError(f"{path}: the number has more than {limit} digits") from None
    return plain


def key_text(key: object, path: str) -> str:
    """A dict key as json writes it."""
    if isinstance(key, str):
        return str.__str__(key)
    if key is None or key is True or key is False:
        return "null" if key is None else str(key).lower()
    if isinstance(key, int):
        return int.__repr__(whole_number(key, path))
    if isinstance(key, float):
        text = float.__repr__(key)
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(text, text)
    raise NoFormError(f"{path}: a key of type {type(key).__name__} has no JSON form")


def checked(text: str, request: "dict[str, Any]") -> str:
    """The frame's JSON for a value's text, if its size and depth are within bounds."""
    limit = request["value_limit_bytes"]
    if len(text) > limit or len(text.encode("utf-8", "backslashreplace")) > limit:
        return failure_text(LARGE, "ValueError", f"the value is larger than {limit} bytes")
    limit = request["depth_limit"]
    if depth_of(text) > limit:
        message = f"the value is nested deeper than {limit} levels"
        return failure_text(LARGE, "ValueError", message)
    return f'{{"ok":true,"value":{text}}}'


def depth_of(text: str) -> int:
    """How deep a JSON text is nested."""
    depth = deepest = 0
    # Without escapes, every second piece between quotes is outside of strings.
    for piece in text.replace("\\\\", "").replace('\\"', "").split('"')[::2]:
        for character in piece:
            if character in "[{":
                depth += 1
                deepest = max(deepest, depth)
            elif character in "]}":
                depth -= 1
    return deepest


# -- top-level return and await ----------------------------------------------------------------


def compiled_with_return(source: str, error: Exception) -> "list[CodeType] | str":
    """Compile a snippet that returns at its top level; else the frame's JSON for `error`.

    The snippet becomes the body of a function whose every name is declared global, and the
    function's code then runs as a module's does: the same names, positions, `locals()`, and a real
    `return`, so that `finally` and `except:` around it mean what they always mean. Two things are
    lost: annotations of variables are not kept, and `from x import *` is refused.
    """
    if not isinstance(error, SyntaxError) or error.msg != "'return' outside function":
        return syntax_text(error)
    try:
        return [function_code(source)]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as second:
        return syntax_text(second)


def parsed(source: str) -> "Any":
    """The tree of a snippet or of our own text."""
    return compile(source, SNIPPET, "exec", ONLY_AST | TOP_LEVEL_AWAIT, True)


def function_code(source: str) -> "CodeType":
    """The code of a snippet with a top-level return, to be run as a module's."""
    import _symtable  # type: ignore[import-not-found]  # built in: no file can replace it

    table: Any = _symtable.symtable(source, SNIPPET, "exec")
    names = ", ".join(sorted(table.symbols)) or "_"
    for kind in ("def", "async def"):
        # Sharing nodes between two trees is fine; changing them twice is not: parse again.
        tree = parsed(source)
        futures = []
        while tree.body and getattr(tree.body[0], "module", None) == "__future__":
            futures.append(tree.body.pop(0))
        replace_statements(tree.body, without_annotation)
        if tree.body and type(tree.body[-1]).__name__ == "Expr":
            tree.body[-1] = with_place("return 0", tree.body[-1], value=tree.body[-1].value)
        wrapper = parsed(f"{kind} snippet():\n global {names}")
        wrapper.body[0].body += tree.body
        wrapper.body[:0] = futures
        try:
            module = compile(wrapper, SNIPPET, "exec", 0, True)
            break
        except SyntaxError as error:
            # `await` in a plain function; anything else is the guest's own mistake.
            if kind == "async def" or "async" not in error.msg:
                raise
    code: CodeType = next(
        part for part in module.co_consts if getattr(part, "co_name", None) == "snippet"
    )
    generator, async_generator = 0x20, 0x200
    if code.co_flags & (generator | async_generator):
        # Without its returns the compiler says itself what is wrong, and where.
        tree = parsed(source)
        replace_statements(tree.body, without_return)
        compile(tree, SNIPPET, "exec", TOP_LEVEL_AWAIT, True)
        raise SyntaxError("'yield' outside function")
    optimized, new_locals = 0x1, 0x2
    flags = code.co_flags & ~(optimized | new_locals)
    return code.replace(co_flags=flags, co_name="<module>", co_qualname="<module>")


def replace_statements(body: "list[Any]", change: "Callable[[Any], Any]") -> None:
    """Apply `change` to each statement of the top level, inside `if`, `try` and the like too."""
    for index, statement in enumerate(body):
        body[index] = change(statement)
        if type(statement).__name__ in ("FunctionDef", "AsyncFunctionDef", "ClassDef"):
            continue
        for field in ("body", "orelse", "finalbody"):
            replace_statements(getattr(statement, field, []), change)
        for field in ("handlers", "cases"):
            for branch in getattr(statement, field, []):
                replace_statements(branch.body, change)


def with_place(template: str, statement: "_ast.stmt", **fields: object) -> "Any":
    """A new statement like `template` at the place of `statement`."""
    outer: Any = parsed(f"def f():\n {template}")
    node = outer.body[0].body[0]
    for name in ("lineno", "col_offset", "end_lineno", "end_col_offset"):
        setattr(node, name, getattr(statement, name))
    for name, value in fields.items():
        setattr(node, name, value)
    return node


def without_annotation(statement: "Any") -> "Any":
    """`x: int = 1` as `x = 1`: a name that is declared global cannot be annotated."""
    if type(statement).__name__ != "AnnAssign":
        return statement
    if statement.value is None:
        return with_place("pass", statement)
    return with_place("x = 0", statement, targets=[statement.target], value=statement.value)


def without_return(statement: "Any") -> "Any":
    """`return x` as `x`."""
    if type(statement).__name__ != "Return":
        return statement
    if statement.value is None:
        return with_place("pass", statement)
    return with_place("0", statement, value=statement.value)


def asynchronous() -> "Callable[[list[CodeType], dict[str, Any]], object]":
    """Load asyncio (50 ms), before guest code runs; return what runs parts that await in it."""
    import asyncio

    coroutine = 0x80

    async def in_loop(parts: "list[CodeType]", names: "dict[str, Any]") -> object:
        value: Any = None
        for code in parts:
            value = eval(code, names)  # noqa: S307 - running code is what this program is for
            if code.co_flags & coroutine:
                value = await value
        return value

    # All of it in one loop, as in a notebook: a task made before the first await is awaited later.
    return lambda parts, names: asyncio.run(in_loop(parts, names))
