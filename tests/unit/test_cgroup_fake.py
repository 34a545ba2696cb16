"""Control groups against plain folders that look like a cgroup file system, v1 and v2."""

import os
from pathlib import Path

import pytest

from cloche.linux import cgroup
from cloche.linux.cgroup import Cgroup, CgroupParents, find_parents, remove_parents
from cloche.model.policy import Limits

LIMITS = Limits(memory_mb=128, pids_count=64, cpu_count=1.5)
FREE = Limits(memory_mb=128, pids_count=64)
MIB = 1024 * 1024


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def parents_v1(root: Path, names: tuple[str, ...] = cgroup.CONTROLLERS) -> CgroupParents:
    folders = {name: root / name / "cloche" for name in names}
    for folder in folders.values():
        folder.mkdir(parents=True)
    return CgroupParents(1, folders)


def parents_v2(root: Path) -> CgroupParents:
    folder = root / "cloche"
    folder.mkdir(parents=True)
    return CgroupParents(2, dict.fromkeys(cgroup.CONTROLLERS, folder))


# What the kernel puts into a new group, by version and controller.
KERNEL_FILES = {
    1: {
        "memory": ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.swappiness"),
        "pids": ("pids.max",),
        "cpu": ("cpu.shares", "cpu.cfs_quota_us"),
        "cpuacct": (),
    },
    2: {
        "memory": ("memory.max", "memory.swap.max"),
        "pids": ("pids.max",),
        "cpu": ("cpu.weight", "cpu.max"),
        "cpuacct": (),
    },
}


def made(parents: CgroupParents, limits: Limits, *, without: str = "") -> Cgroup:
    """A group in which the files are that a kernel would have put there."""
    group = Cgroup(parents, "box")
    for controller, folder in parents.folders.items():
        for name in KERNEL_FILES[parents.version][controller]:
            if name != without:
                (folder / "box" / name).touch()
    group.apply(limits)
    return group


# -- where groups can be made --------------------------------------------------------------------


def test_v1_makes_a_parent_in_each_hierarchy_below_its_own_group(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    write(
        proc / "self/cgroup",
        "9:memory:/docker/a\n8:cpu,cpuacct:/docker/b\n3:pids:/\n1:name=systemd:/x\n0::/y\n",
    )
    for place in ("memory/docker/a", "cpu/docker/b", "cpuacct/docker/b", "pids"):
        (root / place).mkdir(parents=True)
    parents = find_parents("cloche-1", proc=proc, root=root)
    assert parents.version == 1
    assert parents.folders == {
        "memory": root / "memory/docker/a/cloche-1",
        "pids": root / "pids/cloche-1",
        "cpu": root / "cpu/docker/b/cloche-1",
        "cpuacct": root / "cpuacct/docker/b/cloche-1",
    }
    assert all(folder.is_dir() for folder in parents.folders.values())
    (parents.folders["pids"] / "left").mkdir()
    remove_parents(parents)
    remove_parents(parents)
    assert not any(folder.exists() for folder in parents.folders.values())
    assert (root / "pids").is_dir()


def test_v1_leaves_out_a_controller_whose_group_cannot_be_made(tmp_path: Path) -> None:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "self/cgroup", "9:memory:/gone\n3:pids:/\n0::/\n")
    (root / "pids").mkdir(parents=True)
    assert list(find_parents("c", proc=proc, root=root).folders) == ["pids"]


def v2_host(tmp_path: Path, controllers: str = "cpuset cpu io memory pids") -> tuple[Path, Path]:
    proc, root = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "self/cgroup", "0::/user.slice/me\n")
    group = root / "user.slice/me"
    write(root / "cgroup.controllers", "cpuset cpu io memory pids")
    write(group / "cgroup.controllers", controllers)
    write(group / "cgroup.procs", "")
    write(group / "cgroup.subtree_control", "")
    return proc, root


def test_v2_moves_itself_into_a_leaf_and_hands_controllers_down(tmp_path: Path) -> None:
    proc, root = v2_host(tmp_path)
    group = root / "user.slice/me"
    (group / "cgroup.procs").write_text(f"{os.getpid()}\n")
    parents = find_parents("cloche-2", proc=proc, root=root)
    parent = group / "cloche-2"
    assert parents.version == 2
    assert parents.folders == dict.fromkeys(("memory", "pids", "cpu", "cpuacct"), parent)
    assert (group / f"cloche-{os.getpid()}-self/cgroup.procs").read_text() == str(os.getpid())
    for folder in (group, parent):
        assert (folder / "cgroup.subtree_control").read_text() == "+memory +pids +cpu"


def test_v2_uses_only_the_controllers_that_were_delegated(tmp_path: Path) -> None:
    proc, root = v2_host(tmp_path, "memory pids")
    assert set(find_parents("c", proc=proc, root=root).folders) == {"memory", "pids"}


@pytest.mark.parametrize("broken", ["cgroup.procs", "cgroup.subtree_control", "cgroup.controllers"])
def test_v2_without_delegation_leaves_nothing_behind(tmp_path: Path, broken: str) -> None:
    proc, root = v2_host(tmp_path)
    group = root / "user.slice/me"
    (group / broken).unlink()
    (group / broken).mkdir()  # reading and writing fail, as they do without the right to
    before = sorted(path.name for path in group.iterdir())
    assert find_parents("c", proc=proc, root=root) == CgroupParents(2, {})
    assert sorted(path.name for path in group.iterdir()) == before


def test_no_proc_file_means_no_groups(tmp_path: Path) -> None:
    parents = find_parents("c", proc=tmp_path / "none", root=tmp_path)
    assert parents.folders == {}


# -- one group -----------------------------------------------------------------------------------


def test_v1_limits_are_written_and_read_back(tmp_path: Path) -> None:
    group = made(parents_v1(tmp_path), LIMITS)
    memory, pids, cpu = (tmp_path / name / "cloche/box" for name in ("memory", "pids", "cpu"))
    assert (memory / "memory.limit_in_bytes").read_text() == str(128 * MIB)
    assert (memory / "memory.memsw.limit_in_bytes").read_text() == str(128 * MIB)
    assert (pids / "pids.max").read_text() == "65"
    assert (cpu / "cpu.cfs_quota_us").read_text() == "150000"
    assert int((cpu / "cpu.shares").read_text()) < 1024
    assert group.memory_limit() == ("memory.limit_in_bytes", 128 * MIB)
    assert group.pids_limit() == ("pids.max", 65)
    assert group.cpu_quota() == ("cpu.cfs_quota_us", 1.5)
    assert group.cpu_weight()[0] == "cpu.shares"
    assert group.controllers == set(cgroup.CONTROLLERS)
    (cpu / "cpu.cfs_quota_us").write_text("-1\n")
    assert group.cpu_quota() == ("cpu.cfs_quota_us", None)


def test_v2_limits_are_written_and_read_back(tmp_path: Path) -> None:
    group = made(parents_v2(tmp_path), LIMITS)
    folder = tmp_path / "cloche/box"
    assert (folder / "memory.max").read_text() == str(128 * MIB)
    assert (folder / "memory.swap.max").read_text() == "0"
    assert (folder / "pids.max").read_text() == "65"
    assert (folder / "cpu.max").read_text() == "150000 100000"
    assert int((folder / "cpu.weight").read_text()) < 100
    assert group.memory_limit() == ("memory.max", 128 * MIB)
    assert group.pids_limit() == ("pids.max", 65)
    assert group.cpu_quota() == ("cpu.max", 1.5)
    for name in ("memory.max", "pids.max"):
        (folder / name).write_text("max\n")
    (folder / "cpu.max").write_text("max 100000\n")
    assert group.memory_limit() == ("memory.max", -1)
    assert group.pids_limit() == ("pids.max", -1)
    assert group.cpu_quota() == ("cpu.max", None)


def test_without_a_cpu_limit_no_quota_is_written(tmp_path: Path) -> None:
    made(parents_v1(tmp_path / "1"), FREE)
    assert (tmp_path / "1/cpu/cloche/box/cpu.cfs_quota_us").read_text() == ""
    (tmp_path / "2").mkdir()
    made(parents_v2(tmp_path / "2"), FREE)
    assert (tmp_path / "2/cloche/box/cpu.max").read_text() == ""


def test_without_swap_accounting_nothing_is_swapped_at_all(tmp_path: Path) -> None:
    made(parents_v1(tmp_path), FREE, without="memory.memsw.limit_in_bytes")
    memory = tmp_path / "memory/cloche/box"
    assert (memory / "memory.swappiness").read_text() == "0"
    assert (memory / "memory.limit_in_bytes").read_text() == str(128 * MIB)


def test_out_of_memory_kills_are_counted(tmp_path: Path) -> None:
    first = made(parents_v1(tmp_path / "1"), FREE)
    told = tmp_path / "1/memory/cloche/box/memory.oom_control"
    told.write_text("oom_kill_disable 0\nunder_oom 1\noom_kill 3\n")
    assert first.oom_kills_count() == 3
    told.write_text("oom_kill_disable 0\nunder_oom 0\n")  # before Linux 4.13
    assert first.oom_kills_count() == 0
    (tmp_path / "2").mkdir()
    second = made(parents_v2(tmp_path / "2"), FREE)
    told = tmp_path / "2/cloche/box/memory.events"
    told.write_text("low 0\nhigh 0\nmax 12\noom 2\noom_kill 1\noom_group_kill 0\n")
    assert second.oom_kills_count() == 1


def test_usage_is_read(tmp_path: Path) -> None:
    first = made(parents_v1(tmp_path / "1"), FREE)
    write(tmp_path / "1/cpuacct/cloche/box/cpuacct.usage", "12500000\n")
    write(tmp_path / "1/memory/cloche/box/memory.max_usage_in_bytes", "4096\n")
    assert (first.cpu_ms(), first.peak_memory_bytes()) == (12.5, 4096)
    (tmp_path / "2").mkdir()
    second = made(parents_v2(tmp_path / "2"), FREE)
    write(tmp_path / "2/cloche/box/cpu.stat", "usage_usec 12500\nuser_usec 1\n")
    assert (second.cpu_ms(), second.peak_memory_bytes()) == (12.5, 0)  # no memory.peak here
    write(tmp_path / "2/cloche/box/memory.peak", "8192\n")
    assert second.peak_memory_bytes() == 8192


def test_a_group_holds_a_process_only_when_every_hierarchy_says_so(tmp_path: Path) -> None:
    first = made(parents_v1(tmp_path / "1"), FREE)
    proc = tmp_path / "proc"
    lines = [f"{at}:{name}:/x/cloche/box" for at, name in enumerate(cgroup.CONTROLLERS)]
    write(proc / "77/cgroup", "\n".join([*lines, "9:freezer:/", "0::/"]))
    assert first.holds(77, proc=proc)
    write(proc / "78/cgroup", "\n".join([*lines[:2], "2:cpu:/x/cloche/other", lines[3], "0::/"]))
    assert not first.holds(78, proc=proc)
    write(proc / "79/cgroup", "0::/x/cloche/box")
    assert not first.holds(79, proc=proc)
    second = made(parents_v2(tmp_path / "2"), FREE)
    assert second.holds(79, proc=proc)
    write(proc / "80/cgroup", "0::/x/cloche")
    assert not second.holds(80, proc=proc)


def test_v1_controllers_that_are_one_hierarchy_share_one_group(tmp_path: Path) -> None:
    both = tmp_path / "cgroup/cpu,cpuacct"
    both.mkdir(parents=True)
    for name in ("cpu", "cpuacct"):
        (tmp_path / "cgroup" / name).symlink_to(both)
    write(tmp_path / "proc/self/cgroup", "3:cpu,cpuacct:/\n")
    found = find_parents("c", proc=tmp_path / "proc", root=tmp_path / "cgroup")
    assert found.folders == dict.fromkeys(("cpu", "cpuacct"), both / "c")
    write(tmp_path / "proc/5/cgroup", "3:cpu,cpuacct:/c/box")
    assert Cgroup(found, "box").holds(5, proc=tmp_path / "proc")


def test_a_group_that_can_be_made_in_some_hierarchies_only_is_not_made_at_all(
    tmp_path: Path,
) -> None:
    parents = parents_v1(tmp_path)
    parents.folders["cpuacct"].rmdir()
    with pytest.raises(FileNotFoundError):
        Cgroup(parents, "box")
    assert not list(tmp_path.rglob("box"))


@pytest.mark.parametrize("name", ["memory.limit_in_bytes", "pids.max", "cpu.shares"])
def test_a_limit_that_the_kernel_does_not_take_is_an_error(tmp_path: Path, name: str) -> None:
    with pytest.raises(OSError):
        made(parents_v1(tmp_path), FREE, without=name)


def test_a_group_in_use_says_that_it_is_not_gone(tmp_path: Path) -> None:
    group = made(parents_v2(tmp_path), FREE)
    folder = tmp_path / "cloche/box"
    assert not group.destroy()
    for path in folder.iterdir():
        path.unlink()
    assert group.destroy()
    assert group.destroy()
    assert not folder.exists()


def test_a_sweep_removes_only_what_is_old_and_whose_owner_is_gone(tmp_path: Path) -> None:
    parents = parents_v1(tmp_path, ("memory",))
    proc, beside = tmp_path / "proc", tmp_path / "memory"
    (proc / "77").mkdir(parents=True)
    for name in ("cloche-66-aa", "cloche-66-young", "cloche-77-aa", "other-66-aa"):
        (beside / name / "box-1").mkdir(parents=True)
        if not name.endswith("young"):
            os.utime(beside / name, (1, 1))
    cgroup.sweep(parents, "cloche", proc=proc)
    left = {path.name for path in beside.iterdir()}
    assert left == {"cloche", "cloche-66-young", "cloche-77-aa", "other-66-aa"}
