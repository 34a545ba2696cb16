"""Which ids a box may have, by what /proc says of this process."""

import os
from pathlib import Path

import pytest

from cloche.linux.ids import IdMode, choose_id_mode

ALL = "0 0 4294967295\n"
SETID = "00000000000000c0"
NONE = "0000000000000000"


def host(tmp_path: Path, *, capabilities: str, uids: str, gids: str | None = None) -> Path:
    own = tmp_path / "self"
    own.mkdir()
    (own / "status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\nSeccomp:\t0\n")
    (own / "uid_map").write_text(uids)
    (own / "gid_map").write_text(uids if gids is None else gids)
    return tmp_path


@pytest.mark.parametrize(
    ("capabilities", "uids", "gids", "mode"),
    [
        (SETID, ALL, ALL, IdMode.OWN),
        (SETID, "0 100000 65536\n", None, IdMode.CALLER),  # rootless: the range is not mapped
        (SETID, "0 0 1\n", None, IdMode.CALLER),
        (SETID, ALL, "0 0 1000\n", None),
        (NONE, "0 1000 1\n", None, IdMode.CALLER),
        (NONE, ALL, ALL, None),
        ("0000000000000080", ALL, ALL, None),  # CAP_SETUID without CAP_SETGID
    ],
)
def test_a_box_gets_ids_of_its_own_only_where_they_can_be_mapped(
    tmp_path: Path, capabilities: str, uids: str, gids: str | None, mode: IdMode | None
) -> None:
    proc = host(tmp_path, capabilities=capabilities, uids=uids, gids=gids)
    # In the host's own user namespace, root without the right to map would be the guest's uid.
    expected = mode or (IdMode.REFUSED if os.geteuid() == 0 else IdMode.CALLER)
    assert choose_id_mode(1_879_048_192, 1000, proc=proc) == expected
