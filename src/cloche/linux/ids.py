"""Which user ids this process may give to a box.

Source: man 7 user_namespaces, "User and group ID mappings"; man 7 capabilities.
"""

from __future__ import annotations

import os
from enum import StrEnum
from pathlib import Path

_CAP_SETGID, _CAP_SETUID = 6, 7
_ALL_IDS_COUNT = 4_294_967_295


class IdMode(StrEnum):
    """How a box gets its uid."""

    OWN = "own-uid"  # a uid of the box's own, from a range that nothing owns
    CALLER = "caller-uid"  # the caller's, since one-id maps are all that may be written
    REFUSED = "refused"  # the caller's would be the host's root


def choose_id_mode(first: int, count: int, *, proc: Path = Path("/proc")) -> IdMode:
    """Says which ids a box may have.

    Args:
        first: The first id of the range that boxes are to have.
        count: How many ids it has.
        proc: Where /proc is; replaced in tests.
    """
    status = (proc / "self/status").read_text()
    effective = int(status.partition("CapEff:\t")[2].split()[0], 16)
    may_map = bool(effective >> _CAP_SETUID & 1 and effective >> _CAP_SETGID & 1)
    maps = [_read_map(proc / "self" / name) for name in ("uid_map", "gid_map")]
    if may_map and all(_covers(lines, first, count) for lines in maps):
        return IdMode.OWN
    is_initial = maps[0] == [(0, 0, _ALL_IDS_COUNT)]
    if is_initial and os.geteuid() == 0:
        return IdMode.REFUSED
    return IdMode.CALLER


def _read_map(path: Path) -> list[tuple[int, int, int]]:
    lines = []
    for line in path.read_text().splitlines():
        inside, outside, count = map(int, line.split())
        lines.append((inside, outside, count))
    return lines


def _covers(lines: list[tuple[int, int, int]], first: int, count: int) -> bool:
    return any(inside <= first and first + count <= inside + size for inside, _, size in lines)
