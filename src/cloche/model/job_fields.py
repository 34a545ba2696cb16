"""Checks of a job's fields, and a job from plain data (YAML, JSON): strict types, known names."""

from __future__ import annotations

import dataclasses
import difflib
import string
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeVar

from cloche.errors import InvalidRequestError
from cloche.model import snippet_fields
from cloche.model.job import (
    Egress,
    JobSpec,
    LockfileRule,
    RegistryRule,
    Resolve,
    Service,
    Step,
)
from cloche.model.package import is_package_name
from cloche.model.policy import MAX_TIMEOUT_MS, JobLimits

OWN_STEPS: Final = ("resolve", "install", "build-scripts")
"""The names of Cloche's own steps: a lockfile is made, the dependencies are laid out, their own
build scripts run."""

STEPS_LIMIT_COUNT: Final = 64
GLOBS_LIMIT_COUNT: Final = 256
HOSTS_LIMIT_COUNT: Final = 256
PACKAGES_LIMIT_COUNT: Final = 10_000
SERVICES_LIMIT_COUNT: Final = 8
NAME_LIMIT_CHARS: Final = 64
_Choice = TypeVar("_Choice", bound=StrEnum)
_NAME_CHARS = frozenset(string.ascii_letters + string.digits + "-_.")
_VARIABLE_CHARS = frozenset(string.ascii_letters + string.digits + "_")
_MIB_LIMIT = 1024 * 1024

# What other versions of a spec may hold, and what to do without it.
_LATER: Final[Mapping[str, str]] = MappingProxyType(
    {
        "secrets": "leave it out, and keep what needs a secret out of the job",
        "redact": "leave it out: logs are kept as they are, so give the job no secret",
        "isolation": "leave it out: the result says what was enforced",
    }
)
_LATER_OF_STEP: Final[Mapping[str, str]] = MappingProxyType({"secrets": _LATER["secrets"]})
_LATER_OF_EGRESS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "registry": "it is a field of the job, not of its egress",
        "intercept": "leave it out: what goes through TLS is not looked into",
    }
)
# Fields whose only values so far are the defaults.
_FIXED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType({"backend": ("auto", "namespaces")})
# What other systems call the fields of a step.
_OTHER_WORDS = dict.fromkeys(("run", "command", "cmd", "script"), "shell")
_KINDS = {
    type(None): "nothing",
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "a text",
    list: "a list",
    tuple: "a list",
}


def make_spec(fields: Mapping[str, Any]) -> JobSpec:
    """A checked job from plain data, as YAML and JSON hold it.

    Args:
        fields: Names and values as in `JobSpec`; `steps` is a list of mappings and `limits` a
            mapping, with the names of `Step` and `JobLimits`. `bundle` must be there.

    Raises:
        InvalidRequestError: a field is unknown, wrong, or not there in this version.
    """
    _mapping("the job", fields)
    given = _known("", fields, JobSpec, _LATER)
    for name, choices in _FIXED.items():
        if name in fields and fields[name] not in choices:
            shown = " or ".join(choices)
            raise _refuse(name, f"this version knows only {shown}; leave the field out")
    if given.get("steps") is not None:
        steps = _sequence("steps", given["steps"])
        given["steps"] = tuple(_make_step(f"steps[{i}]", step) for i, step in enumerate(steps))
    if "limits" in given:
        limits = _mapping("limits", given["limits"])
        given["limits"] = JobLimits(**_known("limits", limits, JobLimits, {}))
    if "egress" in given:
        given["egress"] = _make_egress("egress", given["egress"])
    if "resolve" in given:
        policy = _known("resolve", _mapping("resolve", given["resolve"]), Resolve, {})
        given["resolve"] = Resolve(**_tuples(policy, "allow"))
    for name, kind in (("lockfile", LockfileRule), ("registry", RegistryRule)):
        if name in given:
            given[name] = _choose(name, given[name], kind)
    given = _tuples(given, "without", "artifacts", "build_scripts")
    if "bundle" not in given:
        raise _refuse("bundle", "is missing: the path of the project's folder")
    spec = JobSpec(**given)
    check_spec(spec)
    return spec


def check_spec(spec: JobSpec) -> None:
    """Checks every field of a job; the bundle's paths are checked when it is read.

    Raises:
        InvalidRequestError: a field has a wrong type or value; the message names it.
    """
    if not isinstance(spec, JobSpec):
        raise _refuse("spec", f"must be a JobSpec, not {_kind(spec)}")
    _check_bundle(spec.bundle)
    _check_integer("step_timeout_ms", spec.step_timeout_ms, 1, MAX_TIMEOUT_MS)
    if spec.steps is not None:
        steps = _sequence("steps", spec.steps)
        if not 1 <= len(steps) <= STEPS_LIMIT_COUNT:
            raise _refuse("steps", f"must be 1 to {STEPS_LIMIT_COUNT} steps, not {len(steps)}")
        for index, step in enumerate(steps):
            _check_step(f"steps[{index}]", step)
            if any(step.name == other.name for other in steps[:index]):
                raise _refuse(f"steps[{index}].name", f"{step.name!r} is there twice")
    for index, name in enumerate(_sequence("without", spec.without, STEPS_LIMIT_COUNT)):
        _check_name(f"without[{index}]", name)
    if spec.artifacts is not None:
        _check_globs("artifacts", spec.artifacts)
    _check_limits(spec.limits)
    _check_egress("egress", spec.egress)
    snippet_fields.CHECKS["trust_domain"]("trust_domain", spec.trust_domain)
    if spec.template is not None:
        _check_text("template", spec.template)
        if not spec.template:
            raise _refuse("template", "is empty; give the path of a folder or an archive")
    _choose("lockfile", spec.lockfile, LockfileRule)
    _choose("registry", spec.registry, RegistryRule)
    _check_resolve(spec.resolve)
    _check_packages("build_scripts", spec.build_scripts)


def _check_resolve(policy: Any) -> None:
    if not isinstance(policy, Resolve):
        raise _refuse("resolve", f"must be a Resolve, not {_kind(policy)}")
    _check_integer("resolve.minimum_age_hours", policy.minimum_age_hours, 0, 24 * 365 * 10)
    if policy.allow is not None:
        _check_packages("resolve.allow", policy.allow)


def _check_packages(where: str, names: Any) -> None:
    for index, name in enumerate(_sequence(where, names, PACKAGES_LIMIT_COUNT)):
        _check_text(f"{where}[{index}]", name)
        if not is_package_name(name):
            raise _refuse(f"{where}[{index}]", f"{name[:80]!r} is no name of a package")


def _choose(where: str, value: Any, kind: type[_Choice]) -> _Choice:
    choices = [choice.value for choice in kind]
    if not isinstance(value, str) or value not in choices:
        shown = repr(value[:80]) if isinstance(value, str) else _kind(value)
        raise _refuse(where, f"must be {' or '.join(choices)}, not {shown}")
    return kind(value)


def _tuples(fields: dict[str, Any], *names: str) -> dict[str, Any]:
    """The fields, with lists of those names as tuples."""
    lists = {name: tuple(fields[name]) for name in names if isinstance(fields.get(name), list)}
    return {**fields, **lists}


def _make_step(where: str, fields: Any) -> Step:
    given = _known(where, _mapping(where, fields), Step, _LATER_OF_STEP)
    if "name" not in given:
        raise _refuse(f"{where}.name", "is missing")
    given = _tuples(given, "argv", "keeps", "reports")
    if given.get("egress") is not None:
        given["egress"] = _make_egress(f"{where}.egress", given["egress"])
    if "services" in given:
        services = _sequence(f"{where}.services", given["services"], SERVICES_LIMIT_COUNT)
        given["services"] = tuple(
            _make_service(f"{where}.services[{i}]", each) for i, each in enumerate(services)
        )
    return Step(**given)


def _make_service(where: str, fields: Any) -> Service:
    given = _known(where, _mapping(where, fields), Service, _LATER_OF_STEP)
    for name in ("name", "port"):
        if name not in given:
            raise _refuse(f"{where}.{name}", "is missing")
    return Service(**_tuples(given, "argv"))


def _make_egress(where: str, fields: Any) -> Egress:
    given = _known(where, _mapping(where, fields), Egress, _LATER_OF_EGRESS)
    return Egress(tuple(_sequence(f"{where}.allow", given.get("allow", ()))))


def _check_egress(where: str, egress: Any) -> None:
    if not isinstance(egress, Egress):
        raise _refuse(where, f"must be an Egress, not {_kind(egress)}")
    hosts = _sequence(f"{where}.allow", egress.allow, HOSTS_LIMIT_COUNT)
    for index, host in enumerate(hosts):
        _check_text(f"{where}.allow[{index}]", host)


def _known(
    where: str, fields: Mapping[Any, Any], kind: type[Any], later: Mapping[str, str]
) -> dict[str, Any]:
    """The fields that `kind` has; those it may have later, and all others, are refused."""
    names = [field.name for field in dataclasses.fields(kind)]
    fixed = _FIXED if kind is JobSpec else {}
    known = {}
    for name, value in fields.items():
        path = f"{where}.{str(name)[:80]}" if where else str(name)[:80]
        if name in later:
            raise _refuse(path, f"is not there in this version; {later[name]}")
        if name in names:
            known[name] = value
        elif name not in fixed:
            near = difflib.get_close_matches(str(name)[:80], names, n=1, cutoff=0.6)
            if kind is Step and name in _OTHER_WORDS:
                near = [_OTHER_WORDS[name]]
            hint = f"; did you mean `{near[0]}`?" if near else f"; known: {', '.join(names)}"
            raise _refuse(path, f"is no such field{hint}")
    return known


def _check_bundle(bundle: Any) -> None:
    if isinstance(bundle, str):
        if not bundle:
            raise _refuse("bundle", "is empty; give the path of the project's folder")
        _check_text("bundle", bundle)
        return
    if not isinstance(bundle, Mapping):
        hint = "; give an archive's path" if isinstance(bundle, bytes) else ""
        kind = _kind(bundle)
        raise _refuse("bundle", f"must be a path, a diff or path → content, not {kind}{hint}")
    for path, content in bundle.items():
        if not isinstance(path, str):
            raise _refuse("bundle", f"a path must be a text, not {_kind(path)}")
        if content is not None and not isinstance(content, str | bytes):
            raise _refuse(
                f"bundle[{path[:80]!r}]",
                f"must be a text, bytes, or nothing (it is to go), not {_kind(content)}",
            )


def _check_step(where: str, step: Any) -> None:
    if not isinstance(step, Step):
        raise _refuse(where, f"must be a Step, not {_kind(step)}")
    _check_name(f"{where}.name", step.name)
    if step.name in OWN_STEPS:
        raise _refuse(f"{where}.name", f"{step.name!r} is Cloche's own step; choose another")
    _check_command(where, step.argv, step.shell)
    _check_integer(f"{where}.timeout_ms", step.timeout_ms, 1, MAX_TIMEOUT_MS)
    if step.idle_timeout_ms is not None:
        _check_integer(f"{where}.idle_timeout_ms", step.idle_timeout_ms, 1, MAX_TIMEOUT_MS)
    for flag in ("allow_failure", "always"):
        _check_flag(f"{where}.{flag}", getattr(step, flag))
    services = _sequence(f"{where}.services", step.services, SERVICES_LIMIT_COUNT)
    for index, service in enumerate(services):
        _check_service(f"{where}.services[{index}]", service)
        for field in ("name", "port"):
            if getattr(service, field) in [getattr(other, field) for other in services[:index]]:
                raise _refuse(f"{where}.services[{index}].{field}", "is there twice")
    texts = [text for service in services for text in _texts_of(service)]
    snippet_fields.CHECKS["args"](f"{where}.services", texts)  # one command holds them all
    _check_variables(f"{where}.env", step.env)
    _check_globs(f"{where}.keeps", step.keeps)
    _check_globs(f"{where}.reports", step.reports)
    _check_optional_flag(f"{where}.expects_tests", step.expects_tests)
    if step.egress is not None:
        _check_egress(f"{where}.egress", step.egress)


def _check_command(where: str, argv: Any, shell: Any) -> None:
    if (argv is None) == (shell is None):
        raise _refuse(where, "needs either `argv`, a list, or `shell`, a line; one of the two")
    if argv is not None:
        arguments = _sequence(f"{where}.argv", argv)
        for index, argument in enumerate(arguments):
            _check_text(f"{where}.argv[{index}]", argument)
        if not arguments or not arguments[0]:
            raise _refuse(f"{where}.argv", "must start with the name of a program")
        snippet_fields.CHECKS["args"](f"{where}.argv", arguments)
    if shell is not None:
        _check_text(f"{where}.shell", shell)
        if not shell.strip():
            raise _refuse(f"{where}.shell", "is empty")
        snippet_fields.CHECKS["args"](f"{where}.shell", (shell,))


def _texts_of(service: Service) -> list[str]:
    variables = [f"{name}={text}" for name, text in service.env.items()]
    return [*(service.argv or ()), service.shell or "", *variables]


def _check_service(where: str, service: Any) -> None:
    if not isinstance(service, Service):
        raise _refuse(where, f"must be a Service, not {_kind(service)}")
    _check_name(f"{where}.name", service.name)
    _check_command(where, service.argv, service.shell)
    _check_integer(f"{where}.port", service.port, 1, 65_535)
    _check_integer(f"{where}.ready_timeout_ms", service.ready_timeout_ms, 1, MAX_TIMEOUT_MS)
    _check_variables(f"{where}.env", service.env)


def _check_name(where: str, name: Any) -> None:
    _check_text(where, name)
    wrong = not name or len(name) > NAME_LIMIT_CHARS or not _NAME_CHARS.issuperset(name)
    if wrong or name.startswith((".", "-")):
        raise _refuse(
            where,
            f"{name[:80]!r} must be 1 to {NAME_LIMIT_CHARS} letters, digits, `-`, `_` or `.`,"
            " the first one a letter, digit or `_`",
        )


def _check_variables(where: str, variables: Any) -> None:
    for name, text in _mapping(where, variables).items():
        if not isinstance(name, str) or not name or not _VARIABLE_CHARS.issuperset(name):
            shown = repr(name[:80]) if isinstance(name, str) else _kind(name)
            raise _refuse(where, f"{shown} is no name of a variable (letters, digits, `_`)")
        if name[0].isdigit():
            raise _refuse(where, f"{name[:80]!r} starts with a digit")
        _check_text(f"{where}.{name[:80]}", text)
    snippet_fields.CHECKS["env"](where, variables)


def _check_globs(where: str, globs: Any) -> None:
    for index, glob in enumerate(_sequence(where, globs, GLOBS_LIMIT_COUNT)):
        _check_text(f"{where}[{index}]", glob)
        if len(glob) > snippet_fields.PATH_BYTES_LIMIT:
            limit = snippet_fields.PATH_BYTES_LIMIT
            raise _refuse(f"{where}[{index}]", f"{glob[:40]!r}… is over {limit} bytes")
        if glob.endswith("/"):
            raise _refuse(
                f"{where}[{index}]", f"{glob[:80]!r} ends in `/`; for all below it: `folder/**`"
            )
        snippet_fields.check_path(f"{where}[{index}]", glob)


def _check_limits(limits: Any) -> None:
    if not isinstance(limits, JobLimits):
        raise _refuse("limits", f"must be a JobLimits, not {_kind(limits)}")
    for name, check in LIMIT_CHECKS.items():
        check(f"limits.{name}", getattr(limits, name))


def _bounds(low: int, high: int) -> Callable[[str, Any], None]:
    return lambda where, value: _check_integer(where, value, low, high)


LIMIT_CHECKS: Final[Mapping[str, Callable[[str, Any], None]]] = MappingProxyType(
    {
        "memory_mb": _bounds(16, _MIB_LIMIT),
        "pids_count": _bounds(1, 65_536),
        "cpu_count": snippet_fields.CHECKS["cpu_limit"],
        "scratch_mb": _bounds(1, _MIB_LIMIT),
        "scratch_inodes_count": _bounds(1, 100_000_000),
        "timeout_ms": _bounds(1, MAX_TIMEOUT_MS),
        "log_mb": _bounds(1, _MIB_LIMIT),
        "artifacts_mb": _bounds(1, _MIB_LIMIT),
        "artifacts_count": _bounds(1, 1_000_000),
        "egress_mb": _bounds(1, _MIB_LIMIT),
        "connections_count": _bounds(1, 1_024),
    }
)


def _check_optional_flag(where: str, value: Any) -> None:
    if value is not None:
        _check_flag(where, value)


def _check_flag(where: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise _refuse(where, f"must be true or false, not {_kind(value)}")


def _check_integer(where: str, value: Any, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        shown = repr(value) if isinstance(value, float) else _kind(value)
        raise _refuse(where, f"must be a whole number, not {shown}")
    if not low <= value <= high:
        # Python does not print integers of thousands of digits.
        shown = str(value) if abs(value) < 10**30 else "a number that large"
        raise _refuse(where, f"must be from {low} to {high}, not {shown}")


def _check_text(where: str, value: Any) -> None:
    if not isinstance(value, str):
        hint = "; put it in quotes" if isinstance(value, bool | int | float) else ""
        raise _refuse(where, f"must be a text, not {_kind(value)}{hint}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _refuse(where, "has a lone surrogate") from None
    if "\0" in value:
        raise _refuse(where, "has a NUL character")


def _sequence(where: str, value: Any, limit_count: int | None = None) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise _refuse(where, f"must be a list, not {_kind(value)}")
    if limit_count is not None and len(value) > limit_count:
        raise _refuse(where, f"at most {limit_count}, not {len(value)}")
    return value


def _mapping(where: str, value: Any) -> Mapping[Any, Any]:
    if not isinstance(value, Mapping):
        raise _refuse(where, f"must be names and their values, not {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    """What a value is, in the words of whoever writes YAML."""
    if isinstance(value, Mapping):
        return "names and values"
    return _KINDS.get(type(value), type(value).__name__)


def _refuse(where: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"{where}: {why}", retry_safe=True)
