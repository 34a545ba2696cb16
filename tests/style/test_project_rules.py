"""Rules of the project that a linter does not know."""

import ast
import inspect
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import cloche
from cloche.errors import SANDBOX_ERROR_CODES, SandboxErrorCode

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
LINES_LIMIT = 500
TEXT_SUFFIXES = {".py", ".mjs", ".md", ".toml", ".txt", ".json", ".yml", ".yaml", ".sh", ""}
# Put together here, so that this file does not hold what it forbids.
FORBIDDEN = [
    "".join(parts)
    for parts in (
        ("pypi", ".org"), ("python", "hosted.org"), ("registry.npm", "js.org"),
        ("npmmirror", ".com"), ("--index", "-url"), ("--extra", "-index-url"),
    )
] + [f"{ROOT}/"]  # fmt: skip


def project_files() -> list[Path]:
    """What is written by people: no environments, caches, locks or version control."""
    skipped = {".git", ".venv", "node_modules", "__pycache__", "shared"}
    found = []
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        hidden = any(part in skipped or part.endswith("_cache") for part in parts)
        if path.is_file() and not hidden and ".hypothesis" not in parts:
            found.append(path)
    return [path for path in found if path.suffix in TEXT_SUFFIXES]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_is_short_enough_to_be_read(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES_LIMIT


def test_no_module_has_a_name_that_says_nothing() -> None:
    empty = {"utils", "common", "helpers", "manager", "core", "misc", "util"}
    assert [path for path in SOURCES if path.stem in empty or path.parent.name in empty] == []


def test_the_public_names_are_sorted_complete_and_there() -> None:
    assert cloche.__all__ == sorted(cloche.__all__)
    assert set(cloche.__all__) == {*cloche._HOME_OF, "sync"}
    assert list(cloche._HOME_OF) == sorted(cloche._HOME_OF)
    for name in cloche.__all__:
        assert getattr(cloche, name) is not None
    assert set(cloche.__all__) <= set(dir(cloche))
    with pytest.raises(AttributeError, match="no_such_name"):
        cloche.no_such_name  # noqa: B018


@pytest.mark.parametrize("name", [name for name in cloche.__all__ if name != "sync"])
def test_a_public_name_is_documented(name: str) -> None:
    thing = getattr(cloche, name)
    told = thing.__dict__.get("__doc__") if inspect.isclass(thing) else thing.__doc__
    assert told and told.strip()
    if inspect.isclass(thing):
        for attribute, value in vars(thing).items():
            if callable(value) and not attribute.startswith("_"):
                assert value.__doc__, f"{name}.{attribute}"


def test_the_facade_has_the_same_names() -> None:
    for name in ("run", "create_process_sandbox"):
        ours = inspect.signature(getattr(import_module("cloche.sync"), name))
        assert list(ours.parameters) == list(inspect.signature(getattr(cloche, name)).parameters)


def test_every_error_is_in_the_tree_that_the_module_shows() -> None:
    errors = import_module("cloche.errors")
    tree = errors.__doc__ or ""
    for name, thing in vars(errors).items():
        if inspect.isclass(thing) and issubclass(thing, Exception):
            assert name in tree, name
            assert name.endswith("Error")
            assert name in cloche.__all__, name


def test_every_code_has_its_text_and_its_section_in_the_documents_and_no_other_has() -> None:
    assert set(SANDBOX_ERROR_CODES) == set(SandboxErrorCode)
    text = (ROOT / "docs/errors.md").read_text()
    words = "".join(c if c.isalnum() or c == "_" else " " for c in text).split()
    told = {word for word in words if word.startswith("SANDBOX_") and len(word) > 8}
    assert told == set(SandboxErrorCode)


def test_every_document_that_is_linked_to_is_there() -> None:
    missing = []
    for path in project_files():
        if path.suffix == ".md":
            for piece in path.read_text().split("](")[1:]:
                target = piece.partition(")")[0].partition("#")[0]
                is_file = target and "://" not in target and not target.startswith("mailto:")
                if is_file and not (path.parent / target).exists():
                    missing.append(f"{path.relative_to(ROOT)}: {target}")
    assert missing == []


def test_no_file_names_a_place_of_one_machine_or_a_package_registry() -> None:
    found = []
    for path in project_files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            for word in FORBIDDEN:
                if word in line:
                    found.append(f"{path.relative_to(ROOT)}:{number}: {word}")
    assert found == []


def test_the_lock_holds_hashes_and_no_addresses() -> None:
    for path in sorted((ROOT / "locks").glob("*.txt")):
        text = path.read_text()
        assert "://" not in text
        for line in text.splitlines():
            if "==" in line and not line.startswith(("#", " ")):
                assert line.rstrip().endswith("\\"), f"{path.name}: {line} has no hash"


def test_the_version_is_the_same_everywhere() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert declared == cloche.__version__


def test_test_modules_have_names_of_their_own() -> None:
    """Two test modules of one name cannot be collected together."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_says_what_it_is_and_has_no_open_end(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "no docstring"
    for mark in ("TO" + "DO", "FIX" + "ME", "XX" + "X:"):
        assert mark not in text
