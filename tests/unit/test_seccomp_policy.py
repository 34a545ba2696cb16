"""The default policy: what it leaves out, and that libseccomp reads it the same way."""

import errno
import itertools
import tempfile

import pytest
from bpf_machine import (
    ALLOW,
    AUDIT_ARCH,
    WORD,
    Instructions,
    decode,
    errno_verdict,
    meaning,
    rules_by_number,
    run,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from cloche.linux.seccomp import default_filter
from cloche.linux.seccomp_numbers import NUMBERS
from cloche.linux.seccomp_policy import DEFAULT_POLICY, LOW_WORD, Rule

try:
    import pyseccomp
except (ImportError, OSError, RuntimeError) as error:
    pytest.skip(f"the libseccomp2 shared library is missing: {error}", allow_module_level=True)

ARCHES = sorted(NUMBERS)
# Older releases of libseccomp lack some calls; which, depends on the distribution's patches.
NEWER_THAN_LIBSECCOMP = {
    name for name in ("fchmodat2",) if pyseccomp.resolve_syscall(pyseccomp.Arch.X86_64, name) == -1
}
LIBSECCOMP_ARCH = {"x86_64": pyseccomp.Arch.X86_64, "aarch64": pyseccomp.Arch.AARCH64}


class Oracle:
    """The default policy as libseccomp compiles it.

    libseccomp knows one errno for what no rule allows, so there is one filter for each errno.
    """

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.rules = rules_by_number(DEFAULT_POLICY, arch)
        errnos = {DEFAULT_POLICY.default, *(rule.otherwise for rule in DEFAULT_POLICY.rules)}
        self.programs = {number: self._compile(number) for number in errnos}

    def verdict(self, number: int, args: tuple[int, ...]) -> int:
        rule = self.rules.get(number)
        otherwise = rule.otherwise if rule else DEFAULT_POLICY.default
        return run(self.programs[otherwise], AUDIT_ARCH[self.arch], number, args)

    def _compile(self, otherwise: int) -> Instructions:
        syscall_filter = pyseccomp.SyscallFilter(pyseccomp.ERRNO(otherwise))
        if self.arch != "x86_64":
            syscall_filter.remove_arch(pyseccomp.Arch.NATIVE)
            syscall_filter.add_arch(LIBSECCOMP_ARCH[self.arch])
        syscall_filter.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.KILL_PROCESS)
        for rule in DEFAULT_POLICY.rules:
            for name in rule.names.split():
                if name in NEWER_THAN_LIBSECCOMP:
                    continue
                for matches in ((),) if rule.when is None else rule.when:
                    compares = [
                        pyseccomp.Arg(m.index, pyseccomp.MASKED_EQ, m.mask, m.value)
                        for m in matches
                    ]
                    syscall_filter.add_rule(pyseccomp.ALLOW, name, *compares)
        with tempfile.TemporaryFile() as file:
            syscall_filter.export_bpf(file)
            file.seek(0)
            return decode(file.read())


@pytest.fixture(scope="module", params=ARCHES)
def oracle(request):
    if pyseccomp.system_arch() != pyseccomp.Arch.X86_64:
        pytest.skip("the oracle's rules are numbered as on x86_64; this machine is not")
    return Oracle(request.param)


def interesting_args(rule: Rule | None) -> list[tuple[int, ...]]:
    """Values on, beside and above every value that the rule tests, in all combinations."""
    values: list[set[int]] = [{0, (1 << 64) - 1} for _ in range(6)]
    for match in itertools.chain.from_iterable((rule.when if rule else None) or ()):
        near = {match.value, match.value ^ 1, match.value + 1, match.value | 1 << 11}
        near |= {1 << bit for bit in range(32) if match.mask != LOW_WORD and match.mask >> bit & 1}
        values[match.index] |= {*near, match.value | 1 << 32, match.value | WORD << 32}
    return list(itertools.product(*values[:3], {0}, {0}, {0}))


def test_every_call_gets_the_verdict_that_libseccomp_gives(oracle):
    program = decode(default_filter(oracle.arch))
    arch = AUDIT_ARCH[oracle.arch]
    newer = {NUMBERS[oracle.arch][name] for name in NEWER_THAN_LIBSECCOMP}
    verdicts = set()
    for number in set(range(600)) - newer:
        for args in interesting_args(oracle.rules.get(number)):
            verdict = run(program, arch, number, args)
            assert verdict == oracle.verdict(number, args), (number, args)
            verdicts.add(verdict)
    assert verdicts >= {ALLOW, *map(errno_verdict, (errno.ENOSYS, errno.EPERM, errno.ENOTTY))}


@pytest.mark.parametrize("arch", ARCHES)
def test_the_upper_half_of_an_argument_changes_no_verdict(arch):
    program, rules = decode(default_filter(arch)), rules_by_number(DEFAULT_POLICY, arch)
    allowed = 0
    for number, rule in rules.items():
        for args in interesting_args(rule):
            verdict = run(program, AUDIT_ARCH[arch], number, args)
            high = tuple(value | WORD << 32 for value in args)
            assert run(program, AUDIT_ARCH[arch], number, high) == verdict, (number, args)
            allowed += verdict == ALLOW and rule.when is not None
    assert allowed > 100


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_random_arguments_get_the_verdict_that_libseccomp_gives(oracle, data):
    conditional = sorted(n for n, rule in oracle.rules.items() if rule.when is not None)
    number = data.draw(st.sampled_from(conditional) | st.integers(0, 450))
    words = st.sampled_from([0, 1, 2, 3, 6, 10, 17, 0x5412]) | st.integers(0, WORD)
    args = tuple(data.draw(words) | data.draw(words) << 32 for _ in range(6))
    program = decode(default_filter(oracle.arch))
    verdict = run(program, AUDIT_ARCH[oracle.arch], number, args)
    assert verdict == meaning(DEFAULT_POLICY, oracle.rules, number, args)
    assert verdict == oracle.verdict(number, args)


@pytest.mark.parametrize("arch", ARCHES)
def test_the_tables_hold_the_numbers_that_libseccomp_knows(arch):
    names = {name for rule in DEFAULT_POLICY.rules for name in rule.names.split()}
    known = {
        name: number
        for name in names
        if (number := pyseccomp.resolve_syscall(LIBSECCOMP_ARCH[arch], name)) >= 0
    }
    table = dict(NUMBERS[arch])
    for name in NEWER_THAN_LIBSECCOMP:
        table.pop(name)
    assert table == known


FORBIDDEN = """
    clone3 unshare setns mount umount2 pivot_root chroot open_tree move_mount fsopen fsconfig
    fsmount fspick mount_setattr ptrace process_vm_readv process_vm_writev kcmp pidfd_getfd bpf
    perf_event_open io_uring_setup io_uring_enter io_uring_register io_setup userfaultfd add_key
    request_key keyctl memfd_create memfd_secret shmget shmat shmctl semget semop semctl msgget
    msgsnd msgrcv msgctl mq_open mq_unlink name_to_handle_at open_by_handle_at fanotify_init
    lookup_dcookie seccomp landlock_restrict_self init_module finit_module delete_module
    kexec_load kexec_file_load reboot swapon swapoff quotactl acct sethostname setdomainname
    settimeofday clock_settime adjtimex clock_adjtime syslog vhangup nfsservctl sync syncfs
    splice tee vmsplice mincore setuid setgid setresuid setresgid setgroups capset
    process_madvise move_pages migrate_pages mbind execveat
""".split()


@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("name", FORBIDDEN)
def test_a_dangerous_call_looks_as_if_the_kernel_had_none(arch, name):
    number = pyseccomp.resolve_syscall(LIBSECCOMP_ARCH[arch], name)
    if number >= 0:
        program = decode(default_filter(arch))
        assert run(program, AUDIT_ARCH[arch], number, (0,) * 6) == errno_verdict(errno.ENOSYS)
    else:
        assert name not in NUMBERS[arch]


def test_every_rule_says_why():
    for rule in DEFAULT_POLICY.rules:
        assert len(rule.reason) > 3, rule.names
