"""What names, kinds and sizes the files of a project may have: the rules of a bundle.

- A path is relative, of plain parts, UTF-8, at most `PATH_BYTES_LIMIT` long and `DEPTH_LIMIT` parts
  deep. No `..`, `.` or empty part, no `~` or drive letter in front, no backslash; neither as it
  stands nor after normalisation (U+2025 becomes `..`, U+FF0F becomes `/`).
- No control characters, and none that are invisible or turn the direction of text (categories Cc,
  Cf, Zl and Zp), except for the zero-width joiner and non-joiner, which emoji and several scripts
  need.
- No two names in a folder are equal once case, compatibility forms and ignorable characters are
  folded away (`Src` and `src`, both forms of `é`, `straße` and `strasse`).
- Files and folders only: no link, device, FIFO or socket; no setuid, setgid or sticky bit on a
  file.
- At most `ENTRIES_LIMIT_COUNT` files and folders and `CONTENT_LIMIT_BYTES` of content.

What a job makes itself is left out and not looked into: dependencies, version control, output of
builds. Folders without files leave no trace.
"""

from __future__ import annotations

import stat
import unicodedata
from typing import TYPE_CHECKING, Any, Final

from cloche.jobs.refusal import JobRefusedError
from cloche.linux.files import matches
from cloche.model.job import ReasonCode
from cloche.model.snippet_fields import NAME_BYTES_LIMIT, PATH_BYTES_LIMIT

if TYPE_CHECKING:
    from collections.abc import Sequence

ENTRIES_LIMIT_COUNT: Final = 50_000
CONTENT_LIMIT_BYTES: Final = 256 * 1024 * 1024
DEPTH_LIMIT: Final = 64

_MADE_ANEW: Final = "the job installs its dependencies itself"
_HISTORY: Final = "version control is no part of a project's files"
_OUTPUT: Final = "output of an earlier build or test"
_LEFT_OUT_ANYWHERE: Final = {
    "node_modules": _MADE_ANEW,
    ".pnpm-store": _MADE_ANEW,
    ".venv": _MADE_ANEW,
    ".git": _HISTORY,
    ".hg": _HISTORY,
    ".svn": _HISTORY,
    "__pycache__": _OUTPUT,
    ".pytest_cache": _OUTPUT,
    ".DS_Store": "a file manager's notes",
}
_LEFT_OUT_AT_THE_TOP: Final = frozenset(
    ".next .nuxt .output .svelte-kit .turbo .cache .vite .parcel-cache coverage".split()
)

# What builds call the folder that they write; an artifact glob that names one says that they do.
_OUTPUT_NAMES: Final = frozenset(
    "_site artifacts build coverage dist out output public_html release reports site-dist"
    " storybook-static target www".split()
)

_JOINERS: Final = "\u200c\u200d"
# Default_Ignorable_Code_Point without category Cf: joiners, fillers, variation selectors.
# Source: Unicode Character Database 16, DerivedCoreProperties.txt.
_IGNORABLE: Final = dict.fromkeys(
    [
        *map(ord, _JOINERS),
        *(0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x3164, 0xFFA0),
        *range(0x180B, 0x1810),
        *range(0xFE00, 0xFE10),
        *range(0xFFF0, 0xFFF9),
        *range(0xE0000, 0xE1000),
    ]
)


class Survey:
    """What is in a bundle by name, gathered before any content is looked at.

    Attributes:
        files, folders: Paths that break no rule so far.
        left_out: Why, by path.
        faults: The rule that an entry breaks, by path.
    """

    def __init__(self, outputs: Sequence[str]) -> None:
        self.files: set[str] = set()
        self.folders: set[str] = set()
        self.left_out: dict[str, str] = {}
        self.faults: dict[str, str] = {}
        self._outputs = {folder: glob for glob in outputs if (folder := _folder_of(glob))}

    @property
    def left_count(self) -> int:
        """How many entries may still come."""
        collections = (self.files, self.folders, self.left_out, self.faults)
        return ENTRIES_LIMIT_COUNT - sum(map(len, collections))

    def add(self, path: str, fault: str | None, *, is_folder: bool) -> bool:
        """Takes note of an entry whose folder is noted; returns False if it goes no further.

        Raises:
            JobRefusedError: It is one entry too many.
        """
        kept = False
        if why := self._why_left_out(path):
            self.left_out[path] = why
        elif fault:
            self.faults[path] = fault
        else:
            (self.folders if is_folder else self.files).add(path)
            kept = True
        if self.left_count < 0:
            raise JobRefusedError(
                ReasonCode.BUNDLE_REFUSED,
                f"bundle: has more than {ENTRIES_LIMIT_COUNT} files and folders; "
                "leave out what is no source of the project",
            )
        return kept

    def add_with_folders(self, path: Any, fault: str | None = None) -> None:
        """Takes note of a file by its name, and of the folders on the way to it."""
        if not isinstance(path, str):
            self.faults[f"<{type(path).__name__}>"] = "is no path; paths are text"
        elif wrong := fault_of_path(path):
            self.faults[path] = wrong
        elif self._add_folders(path, [at for at, each in enumerate(path) if each == "/"]):
            self.add(path, fault, is_folder=False)

    def add_folders(self, path: str) -> None:
        """Takes note of a folder by its name, and of those on the way to it."""
        if wrong := fault_of_path(path):
            self.faults[path] = wrong
        else:
            ends = [at for at, each in enumerate(path) if each == "/"]
            self._add_folders(path, [*ends, len(path)])

    def _add_folders(self, path: str, ends: Sequence[int]) -> bool:
        """False where one of them is left out, and so is all that is in it."""
        return all(
            folder in self.folders or self.add(folder, None, is_folder=True)
            for folder in (path[:end] for end in ends)
        )

    def finish(self) -> None:
        """Checks what only shows once every name is known.

        Raises:
            JobRefusedError: An entry breaks a rule, that of unlike names or another.
        """
        for path in self.files & self.folders:
            self.faults[path] = "is a file and a folder; rename one"
        # Two names below different folders meet only where the folders do: siblings are enough.
        owners: dict[tuple[str, str], str] = {}
        for path in sorted(self.files | self.folders):
            folder, _, name = path.rpartition("/")
            owner = owners.setdefault((folder, _fold(name)), path)
            if owner != path:
                self.faults[path] = (
                    f"is the same as {show_path(owner)} where case or Unicode forms do not count; "
                    "rename one"
                )
        self.refuse_faults()

    def refuse_faults(self) -> None:
        """Raises JobRefusedError for the first faulty entry, with the number of the others."""
        if self.faults:
            first = min(self.faults)
            raise refusal(first, self.faults[first], len(self.faults) - 1)

    def _why_left_out(self, path: str) -> str | None:
        name = path.rpartition("/")[2]
        if path in _LEFT_OUT_AT_THE_TOP:
            return _OUTPUT
        for folder, glob in self._outputs.items():
            if matches(path, folder):
                return f"the job makes it anew ({show_path(glob)})"
        return _LEFT_OUT_ANYWHERE.get(name)


def _folder_of(glob: str) -> str | None:
    """The pattern of the build's folders that an artifact glob names; None for others.

    Sources that are delivered (`src/**`) are inputs all the same.
    """
    parts = glob.split("/")
    above = parts[: parts.index("**")] if "**" in parts else parts[:-1]
    while above and above[-1] not in _OUTPUT_NAMES:
        above.pop()
    return "/".join(above) or None


def fault_of_path(path: str) -> str | None:
    """The rule that a path breaks."""
    if len(path) > PATH_BYTES_LIMIT:  # first, so that all else is cheap
        return f"is over {PATH_BYTES_LIMIT} bytes long; shorten it"
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "is not UTF-8; rename it"
    if len(encoded) > PATH_BYTES_LIMIT:
        return f"is over {PATH_BYTES_LIMIT} bytes long; shorten it"
    if any(len(name) > NAME_BYTES_LIMIT for name in encoded.split(b"/")):
        return f"has a name of over {NAME_BYTES_LIMIT} bytes; shorten it"
    for character in "" if path.isprintable() else path:
        kind = _UNSEEN.get(unicodedata.category(character))
        if kind and character not in _JOINERS:
            return f"has {kind} (U+{ord(character):04X}); rename it"
    fault = _fault_of_parts(path)
    if fault or path.isascii():
        return fault
    fault = _fault_of_parts(_fold(path))
    return f"turns into another path when it is normalised: it {fault}" if fault else None


_UNSEEN: Final = {
    "Cc": "a control character",
    "Cf": "an invisible character",
    "Zl": "a line separator",
    "Zp": "a paragraph separator",
}
_RELATIVE: Final = "give the plain path from the project's folder"


def _fault_of_parts(path: str) -> str | None:
    """The rule that a path breaks by where it leads, whatever its length and characters."""
    parts = path.split("/")
    if "\\" in path:
        return "has a backslash; separate folders with `/`"
    if path.startswith("/"):
        return f"is absolute; {_RELATIVE}"
    for part in parts:
        if part in ("", ".", ".."):
            return f"has {f'the part `{part}`' if part else 'an empty part'}; {_RELATIVE}"
    if path.startswith("~"):
        return f"starts with `~`; {_RELATIVE}"
    if path[1:2] == ":" and path[0].isascii() and path[0].isalpha():
        return f"starts with a drive letter; {_RELATIVE}"
    if len(parts) > DEPTH_LIMIT:
        return f"is more than {DEPTH_LIMIT} folders deep; move it up"
    return None


def fault_of_mode(mode: int) -> str | None:
    """Why an entry of this kind and with these permissions cannot be taken."""
    if stat.S_ISDIR(mode):
        return None
    if stat.S_ISLNK(mode):
        return LINK
    if not stat.S_ISREG(mode):
        names = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        return f"is {names.get(stat.S_IFMT(mode), 'a device')}; remove it"
    if mode & (stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX):
        return "has a setuid, setgid or sticky bit; take it away with chmod"
    return None


LINK: Final = "is a link; put a copy of what it points to in its place"


def _fold(text: str) -> str:
    """What all texts have in common that some file system takes for one and the same.

    Source: The Unicode Standard, section 3.13, D147 (compatibility caseless matching), without the
    ignorable characters as in NFKC_Casefold.
    """
    if text.isascii():
        return text.lower()
    folded = unicodedata.normalize("NFD", text.translate(_IGNORABLE)).casefold()
    folded = unicodedata.normalize("NFKD", folded).casefold()
    return unicodedata.normalize("NFKC", folded)


def check_size(path: str, size_bytes: int, left_bytes: int) -> None:
    """Raises JobRefusedError when a file is larger than what is left of CONTENT_LIMIT_BYTES."""
    if size_bytes > left_bytes:
        limit_mb = CONTENT_LIMIT_BYTES // (1024 * 1024)
        why = f"with its {size_bytes} bytes takes the bundle over {limit_mb} MiB; leave out data"
        raise refusal(path, why)


def refusal(path: str, why: str, others_count: int = 0) -> JobRefusedError:
    """The refusal of a bundle for one of its entries."""
    more = f" (and {others_count} more that break a rule)" if others_count else ""
    return JobRefusedError(ReasonCode.BUNDLE_REFUSED, f"bundle: {show_path(path)} {why}{more}")


def show_path(path: str) -> str:
    """A path for a message: in quotes, escaped, of bounded length."""
    return repr(path) if len(path) <= 120 else f"{path[:80]!r}…{path[-30:]!r}"
