"""Every position of the caller's text is found again from the module's."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cloche.source import Transformed, map_position, transform
from cloche.source.positions import Splice, apply_splices, compose_edits

EDITS = st.lists(
    st.tuples(st.integers(0, 11), st.just(0), st.text("xyz", min_size=1, max_size=4)), max_size=4
)


def splices_of(text: str, edits: list[tuple[int, int, str]]) -> tuple[bytes, list[Splice]]:
    return text.encode(), [Splice(offset, offset, words) for offset, _, words in edits]


def place(text: str, offset: int) -> tuple[int, int]:
    """Line and column in UTF-16 units, counted the slow way."""
    line = column = 1
    for index, character in enumerate(text[:offset]):
        if character in "\n\u2028\u2029" or (
            character == "\r" and text[index + 1 : index + 2] != "\n"
        ):
            line, column = line + 1, 1
        else:
            column += len(character.encode("utf-16-le")) // 2
    return line, column


def assert_markers_map_back(code: str, language: str = "typescript") -> None:
    result = transform(code, language)
    assert isinstance(result, Transformed)
    markers = [word for word in ("$a", "$b", "$c", "$d") if word in code]
    assert markers
    for marker in markers:
        line, column = place(result.code, result.code.index(marker))
        mapped = map_position(line, column, line_offset=result.line_offset, edits=result.edits)
        assert mapped == place(code, code.index(marker))


@pytest.mark.parametrize(
    "code",
    [
        "$a",
        "$a; $b\n/* é😀 */ $c . $d",
        "import a from 'a'; $a;\r\nif ($b) return $c;\r\n$d",
        "export default $a; $b\u2028export default $c; export const b = $d",
        "$a; import { é } from '😀'; return $b",
        "let x: Array<T> = <any>($a); enum E { A = 1, B, C = $b } E.B; $d",
        "class A { constructor(private x = $a) { $b } }; return $d",
        "namespace N { export const x = $a; $b } $d",
        "@f($a) class A { @g($b) x: T = 1; accessor y = $d }",
        "#!/x\n$a",
    ],
)
def test_positions_lead_back_to_the_callers_text(code: str) -> None:
    assert_markers_map_back(code)


@given(
    st.lists(
        st.sampled_from(
            [
                "export default 5;",
                "import 'é';",
                "/*😀*/",
                "\n",
                "\r\n",
                "\r",
                "\u2028",
                "f();",
                " ",
            ]
        ),
        max_size=12,
    ),
    st.booleans(),
)
def test_positions_lead_back_whatever_stands_before(parts: list[str], returns: bool) -> None:
    assert_markers_map_back("".join(parts) + (";if ($a) return $b;" if returns else ";$a;") + " $c")


@given(EDITS, EDITS)
def test_edits_of_two_times_are_put_together(
    first: list[tuple[int, int, str]], second: list[tuple[int, int, str]]
) -> None:
    once, edits = apply_splices(*splices_of("abc\ndefgh\n\nij", first))
    twice, more = apply_splices(*splices_of(once, second))
    composed = compose_edits(edits, more)
    for offset in range(len(twice)):
        line, column = place(twice, offset)
        middle = map_position(line, column, line_offset=0, edits=more)
        step_by_step = map_position(*middle, line_offset=0, edits=edits)
        assert map_position(line, column, line_offset=0, edits=composed) == step_by_step


def test_a_position_inside_inserted_text_maps_to_the_place_of_the_insertion() -> None:
    edits = [(1, 1, -10), (1, 14, -22)]
    mapped = [map_position(1, c, line_offset=0, edits=edits) for c in (1, 10, 11, 14, 35, 36)]
    assert mapped == [(1, 1), (1, 1), (1, 1), (1, 4), (1, 4), (1, 4)]
    assert map_position(2, 14, line_offset=1, edits=edits) == (1, 14)
