"""What the compiler promises of any policy, and what it refuses."""

import errno

import pytest
from bpf_machine import (
    AUDIT_ARCH,
    KILL_PROCESS,
    WORD,
    decode,
    errno_verdict,
    meaning,
    rules_by_number,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from cloche.errors import UnavailableError
from cloche.linux.seccomp import compile_filter, default_filter
from cloche.linux.seccomp_numbers import NUMBERS
from cloche.linux.seccomp_policy import DEFAULT_POLICY, Match, Policy, Rule

X86_64 = AUDIT_ARCH["x86_64"]
NO_ARGS = (0,) * 6

words = st.one_of(st.sampled_from([0, 1, 2, WORD, 1 << 31]), st.integers(0, WORD))
arguments = st.builds(lambda high, low: high << 32 | low, words, words)
masks = st.one_of(st.sampled_from([WORD, WORD << 32, (1 << 64) - 1]), arguments)


@st.composite
def match_lists(draw: st.DrawFn) -> tuple[Match, ...]:
    return tuple(
        Match(index, draw(arguments) & (mask := draw(masks)), mask)
        for index in draw(st.lists(st.integers(0, 5), max_size=6))
    )


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    names = draw(st.lists(st.sampled_from(sorted(NUMBERS["x86_64"])), unique=True, max_size=12))
    conditions = st.none() | st.lists(match_lists(), max_size=20).map(tuple)
    return Policy(
        tuple(Rule(name, "because", draw(conditions), draw(st.integers(1, 133))) for name in names),
        draw(st.integers(1, 133)),
    )


@settings(max_examples=60, deadline=None)
@given(policies(), st.data())
def test_a_filter_gives_the_verdict_that_its_policy_reads(policy, data):
    program = decode(compile_filter(policy, "x86_64"))
    rules = rules_by_number(policy, "x86_64")
    seen_values = [0, *(m.value for r in policy.rules for ms in r.when or () for m in ms)]
    for number in [*rules, *(n + 1 for n in rules), 0, 0x3FFFFFFF]:
        args = tuple(data.draw(st.sampled_from(seen_values) | arguments) for _ in range(6))
        assert run(program, X86_64, number, args) == meaning(policy, rules, number, args)


def test_leaves_longer_than_a_short_jump_are_still_jumped_over():
    many = tuple((Match(0, value),) for value in range(200))
    names = ["read", "write", "close", "poll", "futex"]
    policy = Policy(tuple(Rule(name, "because", many, errno.EPERM) for name in names))
    program = decode(compile_filter(policy, "x86_64"))
    assert any(code == 0x05 and offset > 255 for code, _, _, offset in program)
    rules = rules_by_number(policy, "x86_64")
    for number in range(450):
        for value in (0, 199, 200):
            args = (value, 0, 0, 0, 0, 0)
            assert run(program, X86_64, number, args) == meaning(policy, rules, number, args)


@pytest.mark.parametrize("arch", sorted(NUMBERS))
def test_calls_of_every_other_architecture_kill_the_process(arch):
    program = decode(default_filter(arch))
    i386, arm, x86_64, aarch64 = 0x40000003, 0x40000028, *AUDIT_ARCH.values()
    for other in {i386, arm, x86_64, aarch64, 0, WORD} - {AUDIT_ARCH[arch]}:
        for number in range(500):
            assert run(program, other, number, NO_ARGS) == KILL_PROCESS


def test_calls_of_the_x32_abi_kill_the_process():
    program = decode(default_filter("x86_64"))
    for number in (*range(0x40000000, 0x40000000 + 600), 0x7FFFFFFF, 0x80000000, WORD):
        assert run(program, X86_64, number, NO_ARGS) == KILL_PROCESS
    assert run(program, X86_64, 0x3FFFFFFF, NO_ARGS) == errno_verdict(errno.ENOSYS)


def test_the_default_filter_stays_small_and_is_compiled_once():
    assert len(default_filter("x86_64")) // 8 < 1000
    assert default_filter("x86_64") is default_filter("x86_64")


def test_an_empty_policy_allows_nothing():
    program = decode(compile_filter(Policy((), errno.EACCES), "x86_64"))
    assert {run(program, X86_64, number, NO_ARGS) for number in range(500)} == {
        errno_verdict(errno.EACCES)
    }


@pytest.mark.parametrize(
    ("policy", "arch", "complaint"),
    [
        (DEFAULT_POLICY, "riscv64", "riscv64"),
        (Policy((Rule("read", "a"), Rule("write read", "b"))), "x86_64", "'read'"),
        (Policy((Rule("raed", "a"),)), "x86_64", "'raed'"),
        (Policy((Rule("read", "a", ((Match(0, 1),),) * 3000),)), "x86_64", "over 4096"),
    ],
)
def test_a_policy_that_cannot_be_compiled_is_refused_by_name(policy, arch, complaint):
    with pytest.raises(ValueError, match=complaint):
        compile_filter(policy, arch)


@pytest.mark.parametrize("index", [-1, 6])
def test_a_match_on_an_argument_that_no_call_has_is_refused(index):
    with pytest.raises(ValueError, match="argument"):
        Match(index, 0)


def test_a_match_that_can_never_hold_is_refused():
    with pytest.raises(ValueError, match="mask"):
        Match(0, 1 << 32)


def test_a_machine_without_a_table_is_unavailable_and_not_left_unfiltered():
    with pytest.raises(UnavailableError, match="riscv64"):
        default_filter("riscv64")
