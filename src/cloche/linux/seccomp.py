"""Compiles a seccomp policy to the BPF program that the kernel runs before every system call.

Theory of operation. A program is a list of instructions whose jumps go forward by a relative
offset, so pieces can be composed without labels: a piece ends in a return, and a branch is a test,
the piece for "no" and the piece for "yes", one after the other. The number of the call is found by
binary search over runs of numbers with the same answer; a call with conditions has its tests in its
leaf. Calls that are always allowed cost nothing to speak of: the kernel (5.11 and later) finds them
when a filter is loaded and then skips the filter.

Source: seccomp(2), Documentation/userspace-api/seccomp_filter.rst, bpf(4) of FreeBSD for the
instruction set.
"""

import functools
import os
import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from cloche.errors import UnavailableError
from cloche.linux.seccomp_numbers import NUMBERS
from cloche.linux.seccomp_policy import DEFAULT_POLICY, LOW_WORD, Match, Policy, Rule

_AUDIT_ARCH: Final = {"x86_64": 0xC000_003E, "aarch64": 0xC000_00B7}
_X32_BIT: Final = 0x4000_0000  # marks calls of the x32 ABI, which has x86_64's AUDIT_ARCH

_RET_ALLOW: Final = 0x7FFF_0000
_RET_ERRNO: Final = 0x0005_0000
_RET_KILL_PROCESS: Final = 0x8000_0000

# Offsets into struct seccomp_data. Both architectures are little endian.
_OFFSET_NUMBER, _OFFSET_ARCH, _OFFSET_ARGS = 0, 4, 16

_MAX_SHORT_JUMP: Final = 255  # conditional jumps hold their offsets in one byte
_MAX_INSTRUCTIONS: Final = 4096  # BPF_MAXINSNS


class _Instruction(NamedTuple):
    """One ``struct sock_filter``."""

    code: int
    if_true: int
    if_false: int
    value: int


_Piece = list[_Instruction]


def compile_filter(policy: Policy, arch: str) -> bytes:
    """Compiles a policy.

    Calls of another architecture, and on x86_64 those of the x32 ABI, kill the process.

    Args:
        policy: what to allow.
        arch: ``x86_64`` or ``aarch64``, as uname(2) names it.

    Returns:
        The array of ``struct sock_filter`` (8 bytes each, native order of the little-endian
        target) for ``seccomp(SECCOMP_SET_MODE_FILTER)``; its length is ``len(...) // 8``.

    Raises:
        ValueError: the architecture is not supported, a rule names an unknown call or one that
            another rule names, or the program is longer than the kernel takes.
    """
    if arch not in NUMBERS:
        raise ValueError(
            f"no system call table for architecture {arch!r}; known: {', '.join(sorted(NUMBERS))}"
        )
    program = [
        _load(_OFFSET_ARCH),
        _Instruction(_JUMP_EQUAL, 1, 0, _AUDIT_ARCH[arch]),
        _return(_RET_KILL_PROCESS),
        _load(_OFFSET_NUMBER),
    ]
    runs = list(_runs(policy, arch))
    if arch == "x86_64":
        runs.append((_X32_BIT, [_return(_RET_KILL_PROCESS)]))
    program += _search(runs)
    if len(program) > _MAX_INSTRUCTIONS:
        raise ValueError(f"the filter has {len(program)} instructions, over {_MAX_INSTRUCTIONS}")
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


@functools.cache
def default_filter(arch: str | None = None) -> bytes:
    """The program for every box, for this machine's architecture unless another is named.

    Raises:
        UnavailableError: there is no system call table for the architecture.
    """
    arch = arch or os.uname().machine
    if arch not in NUMBERS:
        raise UnavailableError(
            f"no system call policy for architecture {arch!r}",
            fact="seccomp",
            fix=f"use a machine of architecture {' or '.join(sorted(NUMBERS))}",
        )
    return compile_filter(DEFAULT_POLICY, arch)


def _runs(policy: Policy, arch: str) -> Iterator[tuple[int, _Piece]]:
    """Yields (first number, answer) of runs of numbers, ascending, the first from 0."""
    default = [_return(_RET_ERRNO | policy.default)]
    answers: dict[int, _Piece] = {}
    for name, rule in _rules_by_name(policy).items():
        if (number := NUMBERS[arch].get(name)) is not None:
            answers[number] = _answer(rule)
    previous: _Piece = []
    for number in range(max(answers, default=-1) + 2):
        answer = answers.get(number, default)
        if answer != previous:
            yield number, answer
            previous = answer


def _rules_by_name(policy: Policy) -> dict[str, Rule]:
    rules: dict[str, Rule] = {}
    for rule in policy.rules:
        for name in rule.names.split():
            if name in rules:
                raise ValueError(f"two rules name the system call {name!r}")
            if not any(name in table for table in NUMBERS.values()):
                raise ValueError(f"no table has the number of system call {name!r}")
            rules[name] = rule
    return rules


def _search(runs: list[tuple[int, _Piece]]) -> _Piece:
    """Finds the run of the number in the accumulator."""
    if len(runs) == 1:
        return runs[0][1]
    middle = len(runs) // 2
    below, from_middle = _search(runs[:middle]), _search(runs[middle:])
    first_number = runs[middle][0]
    if len(below) <= _MAX_SHORT_JUMP:
        branch = [_Instruction(_JUMP_GREATER_OR_EQUAL, len(below), 0, first_number)]
    else:
        branch = [
            _Instruction(_JUMP_GREATER_OR_EQUAL, 0, 1, first_number),
            _Instruction(_JUMP_ALWAYS, 0, 0, len(below)),
        ]
    return branch + below + from_middle


def _answer(rule: Rule) -> _Piece:
    """The verdict on a call that the rule names."""
    if rule.when is None:
        return [_return(_RET_ALLOW)]
    piece = [instruction for matches in rule.when for instruction in _alternative(matches)]
    return [*piece, _return(_RET_ERRNO | rule.otherwise)]


def _alternative(matches: tuple[Match, ...]) -> _Piece:
    """Allows when all matches hold, and else falls through its end."""
    piece = [_return(_RET_ALLOW)]
    for match in reversed(matches):
        # The machine has 32-bit words, so a 64-bit argument takes up to two tests.
        for shift in (0, 32):
            mask, value = match.mask >> shift & LOW_WORD, match.value >> shift & LOW_WORD
            if not mask:
                continue
            load = [_load(_OFFSET_ARGS + 8 * match.index + shift // 8)]
            if mask != LOW_WORD:
                load.append(_Instruction(_AND, 0, 0, mask))
            piece = [*load, _Instruction(_JUMP_EQUAL, 0, len(piece), value), *piece]
    return piece


_LOAD_WORD: Final = 0x20  # BPF_LD | BPF_W | BPF_ABS
_AND: Final = 0x54  # BPF_ALU | BPF_AND | BPF_K
_JUMP_ALWAYS: Final = 0x05  # BPF_JMP | BPF_JA
_JUMP_EQUAL: Final = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_JUMP_GREATER_OR_EQUAL: Final = 0x35  # BPF_JMP | BPF_JGE | BPF_K
_RETURN: Final = 0x06  # BPF_RET | BPF_K


def _load(offset: int) -> _Instruction:
    return _Instruction(_LOAD_WORD, 0, 0, offset)


def _return(value: int) -> _Instruction:
    return _Instruction(_RETURN, 0, 0, value)
