"""The commands of `cloche repl` and what they keep."""

import json
from types import SimpleNamespace
from typing import Any

import pytest

from cloche.cli.repl_session import HELP, LeaveError, Session
from cloche.errors import InvalidRequestError
from cloche.model.plan import Control, Isolation, Strength


def make_session(**context: Any) -> Session:
    return Session("process", "javascript", None, context)


def result(value: Any, *, ok: bool = True, **controls: Control) -> Any:
    return SimpleNamespace(ok=ok, value=value, isolation=Isolation("namespaces", controls))


def test_values_are_kept_as_context():
    session = make_session(a=1)
    assert session.obey(":let b = [2, {}]") == ""
    session.keep(result({"c": 3}))
    session.keep(result(None))  # the last run that had a value counts
    session.keep(result("lost", ok=False))
    session.obey(":let  d=_")
    assert json.loads(session.obey(":context")) == {"a": 1, "b": [2, {}], "d": {"c": 3}}
    assert session.context == {"a": 1, "b": [2, {}], "d": {"c": 3}}
    assert session.obey(':context {"e": 5}') == '{"e": 5}'
    assert session.obey(":context {}") == "{}"


def test_language_and_sandbox_change():
    session = Session("process", "javascript", "bun", {})
    assert (session.obey(":lang"), session.obey(":sandbox")) == ("javascript", "process")
    assert session.runtime == "bun"
    assert (session.obey(":lang py"), session.obey(":sandbox worker")) == ("python", "worker")
    assert (session.language, session.sandbox, session.runtime) == ("python", "worker", None)


def test_a_command_may_be_shortened_and_help_names_all():
    session = make_session()
    assert session.obey(":h") == session.obey(":help") == HELP
    for name in ("let", "context", "lang", "sandbox", "isolation", "help", "quit"):
        assert f":{name}" in HELP
    for command in (":q", ":quit"):
        with pytest.raises(LeaveError):
            session.obey(command)


def test_the_isolation_of_the_last_run_is_shown():
    session = make_session()
    session.keep(result(1, memory=Control("cgroup", Strength.ENFORCED, "memory.max 1")))
    assert session.obey(":isolation").splitlines() == [
        "backend: namespaces",
        "memory  cgroup  enforced  memory.max 1",
    ]
    session.keep(result(None, ok=False))
    assert session.obey(":isolation") == "the last run did not start"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (":foo", ":foo is no command"),
        (":l", ":l is no command"),  # lang or let
        (":", ": is no command"),
        (":let", "of the form"),
        (":let a", "of the form"),
        (":let a =", "of the form"),
        (":let a = _", "no last value"),
        (":let a = {oops", ":let: not JSON"),
        (":let a-b = 1", "'a-b' is no identifier"),
        (":let __a = 1", "two underscores"),
        (":let Array = 1", "built-in of JavaScript"),
        (":let a = NaN", "not JSON"),
        (":let a = " + "9" * 20, "over 2^53"),
        (":context [1]", "must be a JSON object"),
        (":context {oops", ":context: not JSON"),
        (':context {"a-b": 1}', "'a-b' is no identifier"),
        (":lang cobol", "'cobol' is unknown"),
        (":sandbox cage", "'cage' is unknown"),
        (":isolation", "nothing has run yet"),
    ],
)
def test_a_command_that_is_wrong_changes_nothing(command: str, message: str):
    session = make_session(a=1)
    with pytest.raises(InvalidRequestError) as caught:
        session.obey(command)
    assert message in str(caught.value)
    assert (session.context, session.language, session.sandbox) == (
        {"a": 1},
        "javascript",
        "process",
    )
