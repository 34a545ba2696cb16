"""The read-only roots of boxes: a runtime, its libraries, a minimal /etc and /dev.

Everything is found once per process; the launcher builds a tree from it once and clones that
for every box.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import json
import marshal
import sys
import sysconfig
from functools import cache
from pathlib import Path
from types import MappingProxyType

from cloche.environments.runtimes import Runtime, require_runtime
from cloche.errors import UnavailableError
from cloche.linux.libraries import Libraries, find_libraries
from cloche.model.plan import Environment
from cloche.settings.trust import find_certificates

GUEST_HOME = "/tmp"
SITE = "/opt/cloche/site"
_PACKAGE = Path(__file__).parent.parent
_FOLDERS = (
    "/usr/bin", "/usr/lib", "/usr/lib64", "/etc", "/dev/shm", "/proc", "/tmp", "/workspace",
    "/opt/cloche", "/etc/ssl/certs",
)  # fmt: skip
_LIBRARIES = "/usr/lib64"
_LINKS = (
    ("/bin", "usr/bin"),
    ("/lib", "usr/lib"),
    ("/lib64", "usr/lib64"),
    ("/dev/fd", "/proc/self/fd"),
    ("/dev/stdin", "/proc/self/fd/0"),
    ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
)
_ETC = (
    ("/etc/hosts", "127.0.0.1 localhost cloche\n::1 localhost cloche\n"),
    ("/etc/passwd", f"guest:x:1000:1000::{GUEST_HOME}:/bin/false\n"),
    ("/etc/group", "guest:x:1000:\n"),
    ("/etc/host.conf", "multi on\n"),
    # Cloche answers there in boxes with egress; in others nobody does, at once.
    ("/etc/resolv.conf", "nameserver 127.0.0.1\noptions timeout:2 attempts:2\n"),
    ("/etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
)
# The authorities that the host trusts: a box with egress checks certificates by them.
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
TRUST_ENVIRONMENT = MappingProxyType(
    {
        "SSL_CERT_FILE": _CERTIFICATES,
        "NODE_EXTRA_CA_CERTS": _CERTIFICATES,
        "DENO_CERT": _CERTIFICATES,
    }
)
_DEVICES = ("null", "zero", "full", "random", "urandom")
PARSER_PACKAGES = ("tree_sitter", "tree_sitter_javascript", "tree_sitter_typescript")
_ZONES = Path("/usr/share/zoneinfo")
# Extension modules for screens and for CPython's own tests: of no use in a box.
_UNUSED_MODULES = ("_tkinter", "_test", "_xxtest", "_ctypes_test", "xxlimited", "nis")


def make_environment(kind: str, entries: list[tuple[str, str, str]]) -> Environment:
    """What every box has, with `entries` beside it."""
    folders = [("directory", path, "") for path in _FOLDERS]
    links = [("link", path, target) for path, target in _LINKS]
    files = [("text", path, content) for path, content in _ETC]
    devices = [("device", f"/dev/{name}", f"/dev/{name}") for name in _DEVICES]
    trusted = find_certificates()
    trust = [("copy", _CERTIFICATES, str(trusted))] if trusted is not None else []
    whole = (*folders, *links, *files, *devices, *trust, *entries)
    digest = hashlib.sha256(json.dumps(whole).encode()).hexdigest()[:16]
    return Environment(name=f"{kind}-{digest}", entries=whole)


def _library_entries(binary: Path, modules: tuple[Path, ...] = ()) -> list[tuple[str, str, str]]:
    try:
        return library_entries(find_libraries(binary, modules))
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"the libraries of {binary.name} could not be found: {error}",
            fact=f"runtime-{binary.name}",
            fix="reinstall the runtime; `cloche doctor` shows which one is used",
        ) from error


def library_entries(libraries: Libraries) -> list[tuple[str, str, str]]:
    """Libraries and their loader, where programs look for them."""
    # One folder for all; the loader's default folders are links to it.
    multiarch = sysconfig.get_config_var("MULTIARCH")
    entries = [("link", f"/usr/lib/{multiarch}", _LIBRARIES)] if multiarch else []
    entries += [("copy", f"{_LIBRARIES}/{name}", path) for name, path in libraries.paths.items()]
    if libraries.loader is not None:
        loader = libraries.loader
        place = f"{_LIBRARIES}/{Path(loader).name}" if loader.startswith("/lib64/") else loader
        entries.append(("copy", place, loader))
    return entries


def _guest_entries(*names: str) -> list[tuple[str, str, str]]:
    """Cloche's own programs for the box; Python ones compiled, since that is half their start."""
    entries = []
    for name in names:
        source = _PACKAGE / "guest" / name
        if name.endswith(".py"):
            code = compile(source.read_bytes(), f"/opt/cloche/{name}", "exec", dont_inherit=True)
            header = importlib.util.MAGIC_NUMBER + bytes(12)
            compiled = base64.b64encode(header + marshal.dumps(code)).decode()
            entries.append(("data", f"/opt/cloche/{name}c", compiled))
        entries.append(("copy", f"/opt/cloche/{name}", str(source)))
    return entries


def bundle(name: str) -> str:
    """A JavaScript harness as one text with what it imports of its neighbours.

    A second file costs Bun half a millisecond of a start of five. What is in the files besides
    imports and exports is left as it is, so their names must not clash.
    """
    folder = _PACKAGE / "guest"
    parts: list[str] = []
    own: list[str] = []
    for line in (folder / name).read_text().splitlines():
        _, found, neighbour = line.removesuffix('";').partition(' from "./')
        if line.startswith("import ") and found:
            text = (folder / neighbour).read_text()
            parts.append(text.replace("\nexport ", "\n"))
        else:
            own.append(line)
    return "\n".join([*parts, *own, ""])


@cache
def script_environment(runtime: Runtime) -> Environment:
    """A JavaScript runtime (Bun, Deno or Node), its libraries and its harnesses."""
    name = runtime.name
    harnesses = [
        ("text", f"/opt/cloche/{harness}", bundle(harness))
        for harness in (f"{name}.mjs", f"{name}_program.mjs")
    ]
    return make_environment(
        name,
        [
            ("bind", f"/usr/bin/{name}", str(runtime.host_path)),
            *_library_entries(runtime.host_path),
            *harnesses,
            *_guest_entries("javascript_failure.mjs"),
        ],
    )


def python_version() -> str:
    """What CPython is called in a box: `python3.11`."""
    return f"python{sys.version_info.major}.{sys.version_info.minor}"


def python_modules() -> tuple[Path, ...]:
    """The extension modules of the standard library."""
    library = Path(sysconfig.get_path("stdlib"))
    return tuple(
        path
        for path in sorted((library / "lib-dynload").glob("*.so"))
        if not path.name.startswith(_UNUSED_MODULES)
    )


def standard_library_entries(runtime: Runtime) -> list[tuple[str, str, str]]:
    """CPython and its standard library, without its libraries and what was installed beside it."""
    library = Path(sysconfig.get_path("stdlib"))
    version = python_version()
    place = f"/usr/lib/{version}"
    entries = [
        ("bind", f"/usr/bin/{version}", str(runtime.host_path)),
        ("bind", place, str(library)),
    ]
    for name in ("site-packages", "dist-packages"):
        if (library / name).is_dir():
            entries.append(("hide", f"{place}/{name}", ""))
    return entries


def _python_entries(
    runtime: Runtime, extensions: tuple[Path, ...] = ()
) -> list[tuple[str, str, str]]:
    """CPython with its libraries, under all of its names."""
    return [
        ("link", "/usr/bin/python3", python_version()),
        ("link", "/usr/bin/python", python_version()),
        *_library_entries(runtime.host_path, python_modules() + extensions),
        *standard_library_entries(runtime),
    ]


@cache
def python_environment(runtime: Runtime) -> Environment:
    """CPython, its standard library and the time zones."""
    zones = [("directory", "/usr/share", ""), ("bind", str(_ZONES), str(_ZONES))]
    return make_environment(
        "python",
        [
            *_python_entries(runtime),
            *(zones if _ZONES.is_dir() else []),
            *_guest_entries("python.py", "python_rare.py", "python_tools.py"),
        ],
    )


def interpreter_environment(
    kind: str,
    entries: list[tuple[str, str, str]],
    extensions: tuple[Path, ...],
    *programs: str,
) -> Environment:
    """CPython with packages, for a long-lived program of Cloche's own.

    Args:
        kind: What it is called.
        entries: The packages, below /opt/cloche/site.
        extensions: Native code in them (or beside them) whose libraries are needed too.
        programs: Its files in `guest/`.
    """
    runtime = require_runtime("python")
    return make_environment(
        kind,
        [
            *_python_entries(runtime, extensions),
            *_guest_entries(*programs),
            ("directory", SITE, ""),
            *entries,
        ],
    )


@cache
def transformer_environment() -> Environment:
    """CPython with the parser and Cloche's `source` package, for the transformer's box."""
    packages = [find_package(name, fact="parser") for name in PARSER_PACKAGES]
    return interpreter_environment(
        "transformer",
        package_entries(packages),
        native_code(packages),
        "transformer.py",
    )


def package_entries(packages: list[Path]) -> list[tuple[str, str, str]]:
    """Cloche's `source` package and others, where programs of Cloche's own find them."""
    source = ("bind", f"{SITE}/cloche_source", str(_PACKAGE / "source"))
    return [source, *[("bind", f"{SITE}/{package.name}", str(package)) for package in packages]]


def native_code(packages: list[Path]) -> tuple[Path, ...]:
    """The extension modules and libraries in some packages."""
    return tuple(path for package in packages for path in sorted(package.rglob("*.so")))


def find_package(name: str, *, fact: str) -> Path:
    """The folder, or the file, of an installed package.

    Raises:
        UnavailableError: it is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise UnavailableError(
            f"{name} is not installed",
            fact=fact,
            fix="install Cloche again with its dependencies, the extra `worker` among them",
        )
    origin = Path(spec.origin)
    return origin.parent if origin.name == "__init__.py" else origin
