"""A small index of Python packages on loopback, and a site for jobs that install from it."""

import asyncio
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from cloche.egress.pypi import Index
from cloche.environments.python_tools import find_python_tools
from cloche.errors import UnavailableError
from cloche.model.wheel import PAGE_TYPE, normalise_name
from cloche.settings import read_settings
from cloche.store.packages import PackageStore
from job_site import JobSite, open_site
from registry_server import Authority, RegistryServer


def make_wheel(
    name: str,
    version: str,
    files: Mapping[str, str] | None = None,
    *,
    requires: Sequence[str] = (),
    scripts: Mapping[str, str] | None = None,
) -> bytes:
    """A wheel; equal for equal arguments. `scripts` are files of its `.data/scripts`."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {each}\n" for each in requires)
    contents = {
        **(files or {f"{name}.py": f"version = {version!r}\n"}),
        **{f"{name}-{version}.data/scripts/{at}": text for at, text in (scripts or {}).items()},
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in [*contents, f"{info}/RECORD"])
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for path, text in {**contents, f"{info}/RECORD": record}.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return data.getvalue()


@dataclass(frozen=True)
class Published:
    """A file of an index."""

    name: str
    version: str
    sha256: str
    path: str

    @property
    def line(self) -> str:
        """Of a requirements.txt."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}\n"


class IndexServer(RegistryServer):
    """An index: `/simple/NAME/`, `/packages/FILE`; its `url` is that of its pages."""

    def __init__(self, authority: Authority | None = None) -> None:
        super().__init__(authority)
        self.url = f"{self.origin}/simple/"
        self._listed: dict[str, dict[str, dict[str, object]]] = {}
        self.speaks_json = True

    def publish(
        self,
        name: str,
        version: str,
        data: bytes | None = None,
        *,
        file_name: str | None = None,
        told_sha256: str | None = None,
    ) -> Published:
        """Puts a file on the index, by default a wheel for every platform."""
        data = make_wheel(name, version) if data is None else data
        file_name = file_name or f"{name}-{version}-py3-none-any.whl"
        sha256 = told_sha256 or hashlib.sha256(data).hexdigest()
        path = f"/packages/{file_name}"
        self.serve(path, data)
        project = normalise_name(name)
        listed = self._listed.setdefault(project, {})
        listed[file_name] = {
            "filename": file_name,
            "url": f"../..{path}",
            "hashes": {"sha256": sha256},
        }
        page = f"/simple/{project}/"
        if self.speaks_json:
            told = {"meta": {"api-version": "1.0"}, "name": name, "files": [*listed.values()]}
            self.serve(page, json.dumps(told).encode(), Content_Type=PAGE_TYPE)
        else:
            links = "".join(
                f'<a href="../..{path}#sha256={each["hashes"]["sha256"]}">{at}</a>\n'
                for at, each in listed.items()
            )
            html = f"<!DOCTYPE html><html><body>{links}</body></html>"
            self.serve(page, html.encode(), Content_Type="text/html")
        return Published(project, version, sha256, path)


@cache
def provide_uv() -> None:
    """Sees that this user's own cache has the pinned uv; skips where it cannot be had."""

    async def fetch() -> None:
        store = PackageStore(settings.cache_folder / "packages")
        async with Index(settings.pip, store, mirror="") as index:
            await find_python_tools(settings.cache_folder, index.fetch)

    settings = read_settings()
    try:
        asyncio.run(fetch())
    except UnavailableError as error:
        pytest.skip(f"missing fact: toolchain-uv ({error})")


@dataclass
class PythonSite:
    """A site of jobs, and the index that pip's settings name there."""

    jobs: JobSite
    index: IndexServer


@contextmanager
def open_python_site(folder: Path) -> Iterator[PythonSite]:
    """Makes a site below an empty folder; skips where this host cannot run jobs in Python."""
    provide_uv()
    with (
        open_site(folder) as jobs,
        IndexServer() as index,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.setenv("PIP_INDEX_URL", index.url)
        patch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
        yield PythonSite(jobs, index)
