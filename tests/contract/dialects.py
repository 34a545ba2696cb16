"""What an engine of the worker does not know, and how it says so."""

from typing import Any

from cloche import SandboxErrorCode


def assert_unknown_to_the_engine(result: Any) -> None:
    """The code is refused by name, with its place, and the process sandbox is pointed to."""
    assert (result.ok, result.value) == (False, None)
    codes = (SandboxErrorCode.INVALID_CODE, SandboxErrorCode.EXECUTION_ERROR)
    assert result.error_code in codes, result.error
    assert "use the process sandbox" in result.error
    assert result.error_line is not None or result.error_code is SandboxErrorCode.EXECUTION_ERROR
