"""A BPF machine for seccomp filters, and the plain reading of a policy that filters are held to."""

import struct

from cloche.linux.seccomp_numbers import NUMBERS
from cloche.linux.seccomp_policy import Policy, Rule

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
ALLOW, KILL_PROCESS = 0x7FFF0000, 0x80000000
WORD = 0xFFFFFFFF

Instructions = list[tuple[int, int, int, int]]


def errno_verdict(number: int) -> int:
    return 0x00050000 | number


def decode(program: bytes) -> Instructions:
    return list(struct.iter_unpack("<HBBI", program))


def run(program: Instructions, arch: int, number: int, args: tuple[int, ...]) -> int:
    """Runs a filter on one system call and returns its verdict."""
    data = struct.pack("<IIQ6Q", number, arch, 0, *args)
    accumulator = position = 0
    while True:
        code, if_true, if_false, value = program[position]
        position += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, value)
            case 0x54:
                accumulator &= value
            case 0x05:
                position += value
            case 0x15:
                position += if_true if accumulator == value else if_false
            case 0x25:
                position += if_true if accumulator > value else if_false
            case 0x35:
                position += if_true if accumulator >= value else if_false
            case 0x06:
                return value
            case _:
                raise AssertionError(f"instruction {code:#x} is not modelled")


def rules_by_number(policy: Policy, arch: str) -> dict[int, Rule]:
    return {
        NUMBERS[arch][name]: rule
        for rule in policy.rules
        for name in rule.names.split()
        if name in NUMBERS[arch]
    }


def meaning(policy: Policy, rules: dict[int, Rule], number: int, args: tuple[int, ...]) -> int:
    """The verdict that the policy's text asks for on a call of the filter's own ABI."""
    rule = rules.get(number)
    if rule is None:
        return errno_verdict(policy.default)
    if rule.when is None or any(
        all(args[match.index] & match.mask == match.value for match in matches)
        for matches in rule.when
    ):
        return ALLOW
    return errno_verdict(rule.otherwise)
