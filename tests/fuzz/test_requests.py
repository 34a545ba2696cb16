"""Whatever a caller gives, it is taken or refused as an invalid request, and never half."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cloche.errors import InvalidRequestError
from cloche.frames import encode_request
from cloche.linux.files import matches
from cloche.model.snippet import RunFields, SandboxFields, SandboxOptions
from cloche.snippets.context import check_context

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    | st.complex_numbers() | st.just(print) | st.just(object())
    | st.integers(4500, 4501).map(lambda digits: 10**digits)
    | st.characters(categories=["Cs"]),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text() | st.integers() | st.none(), inner, max_size=3)
    | st.tuples(inner)
    | st.sets(st.integers(), max_size=2),
    max_leaves=8,
)  # fmt: skip
fields = sorted({*SandboxFields.__annotations__, *RunFields.__annotations__, "unknown", ""})


@given(st.sampled_from(fields), anything)
def test_any_value_of_any_field_is_taken_or_refused(name: str, value: Any) -> None:
    try:
        options = SandboxOptions.of(None, {name: value})
    except InvalidRequestError as error:
        assert name in error.message
    else:
        assert getattr(options, name) is value


@given(
    st.dictionaries(st.text() | st.integers(), anything, max_size=3) | anything,
    st.sampled_from(["javascript", "typescript", "python"]),
)
def test_any_context_is_refused_or_survives_the_way_to_the_guest(
    context: Any, language: str
) -> None:
    try:
        checked = check_context(context, language)
    except InvalidRequestError as error:
        assert len(error.message) < 2000
        return
    frame = encode_request({"context": checked})
    assert json.loads(frame[4:]) == {"context": checked}


parts = st.text("ab*?[]!.", min_size=1, max_size=5)


@given(st.lists(parts, min_size=1, max_size=6), st.data())
def test_a_path_matches_itself_with_any_run_of_folders_replaced(
    path: list[str], data: st.DataObject
) -> None:
    literal = ["".join(f"[{c}]" if c in "*?[" else c for c in part) for part in path]
    start = data.draw(st.integers(0, len(path)))
    end = data.draw(st.integers(start, len(path)))
    assert matches("/".join(path), "/".join(literal))
    assert matches("/".join(path), "/".join([*literal[:start], "**", *literal[end:]]))
    assert not matches("/".join([*path, "more"]), "/".join(literal))
