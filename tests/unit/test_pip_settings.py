"""Which indexes, credentials, authorities and proxies pip's settings name."""

import base64
from pathlib import Path

import pytest

from cloche.egress.pypi import find_index
from cloche.errors import UnavailableError
from cloche.linux.host import CommandResult
from cloche.settings.address import Address
from cloche.settings.pip import PipSettings, read_pip


class Host:
    """Files and variables of a host that is made up."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.config = folder / "pip.conf"
        self.config.write_text("")
        self.environment = {"XDG_CONFIG_DIRS": str(folder / "xdg")}
        self.folder = folder
        self.places = {"etc": folder / "etc", "prefix": folder / "prefix"}

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def read(self, text: str = "", **variables: str) -> PipSettings:
        """With a configuration file of this text, which the user's own does not matter beside."""
        self.config.write_text(text)
        return read_pip(
            {**self.environment, "PIP_CONFIG_FILE": str(self.config), **variables},
            self.home,
            **self.places,
        )


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_environment_comes_before_files_and_install_before_global(host: Host) -> None:
    text = "[global]\nindex-url = https://a.test/simple\n[install]\nindex_url = https://b.test/x/\n"
    assert str(host.read(text).index) == "https://b.test/x/"
    assert str(host.read(text, PIP_INDEX_URL="https://c.test/simple").index) == (
        "https://c.test/simple/"
    )


def test_the_users_file_counts_where_none_is_named(host: Host) -> None:
    host.write("etc/pip.conf", "[global]\nindex-url = https://d.test/\n")
    host.write("xdg/pip/pip.conf", "[global]\nindex-url = https://a.test/\nproxy = p.test:1\n")
    host.write("home/.config/pip/pip.conf", "[global]\nindex-url = https://b.test/\n")
    settings = read_pip(host.environment, host.home, **host.places)
    assert str(settings.index) == "https://b.test/"
    assert str(settings.proxies["https"]) == "http://p.test:1/"
    host.write("elsewhere/pip/pip.conf", "[global]\nindex-url = https://c.test/\n")
    elsewhere = {**host.environment, "XDG_CONFIG_HOME": str(host.folder / "elsewhere")}
    assert str(read_pip(elsewhere, host.home, **host.places).index) == "https://c.test/"
    host.write("prefix/pip.conf", "[global]\nindex-url = https://e.test/\n")
    assert str(read_pip(elsewhere, host.home, **host.places).index) == "https://e.test/"
    none = {**host.environment, "PIP_CONFIG_FILE": "/dev/null"}
    assert read_pip(none, host.home, **host.places).index is None


def test_credentials_are_those_of_the_host_that_they_are_named_with(host: Host) -> None:
    settings = host.read("[global]\nindex-url = https://me:s%40crt@a.test/team/simple\n")
    assert "s@crt" not in repr(settings)
    header = f"Basic {base64.b64encode(b'me:s@crt').decode()}"
    assert settings.authorization_for(Address.parse("https://a.test/team/files/x.whl")) == header
    assert settings.authorization_for(Address.parse("https://b.test/team/simple/")) is None
    assert settings.authorization_for(Address.parse("https://a.test:8443/")) is None


def test_further_indexes_are_read_and_folders_are_not(host: Host) -> None:
    text = "[global]\nextra-index-url =\n  https://b.test/simple\n  file:///srv/wheels\n"
    assert [str(each) for each in host.read(text).extra_indexes] == ["https://b.test/simple/"]


def test_an_authority_is_a_file_or_a_folder_of_such(host: Host) -> None:
    host.write("ca/a.pem", "")
    host.write("ca/readme", "")
    assert host.read(PIP_CERT=str(host.folder / "ca")).ca_files == (host.folder / "ca/a.pem",)
    assert host.read(REQUESTS_CA_BUNDLE="/x.pem").ca_files == (Path("/x.pem"),)
    assert host.read("[global]\ncert = /y.pem", REQUESTS_CA_BUNDLE="/x.pem").ca_files == (
        Path("/y.pem"),
    )


def test_proxies_are_those_of_the_environment_where_pip_names_none(host: Host) -> None:
    settings = host.read(HTTPS_PROXY="http://p.test:1", no_proxy="a.test, .b.test")
    assert str(settings.proxy_for(Address.parse("https://c.test/"))) == "http://p.test:1/"
    assert settings.proxy_for(Address.parse("https://x.b.test/")) is None


@pytest.mark.parametrize(
    "text",
    [
        "[global]\nindex-url = ftp://me:hunter2@a.test/",
        "[global]\nindex-url = https://me:hunter2@a.test/?x=hunter2",
        "[global]\nextra-index-url = https://",
        "[global]\nproxy = https://me:hunter2@p.test",
        "index-url = hunter2",
    ],
)
def test_a_setting_that_cannot_be_used_is_named_without_its_value(host: Host, text: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        host.read(text)
    assert "hunter2" not in str(caught.value)
    assert caught.value.fact == "pip-index"


def answers(exit_code: int | None, output: str):
    asked = []

    def run(*argv: str) -> CommandResult:
        asked.append(argv)
        return CommandResult(exit_code, output)

    return run, asked


def test_pip_is_asked_for_its_own_index_where_no_setting_names_one() -> None:
    told = "Base URL of the Python\n      Package Index (default\n      https://a.test/simple). x"
    run, asked = answers(0, told)
    assert str(find_index(PipSettings(), run)) == "https://a.test/simple/"
    assert asked == [("pip", "--isolated", "list", "--help")]
    named = PipSettings(index=Address.parse("https://b.test/"))
    assert find_index(named, run) == named.index
    assert len(asked) == 1


@pytest.mark.parametrize(
    "answer", [(None, ""), (0, ""), (0, "Python Package Index (default x)"), (2, "x")]
)
def test_without_a_pip_to_ask_the_missing_setting_is_named(answer) -> None:
    with pytest.raises(UnavailableError) as caught:
        find_index(PipSettings(), answers(*answer)[0])
    assert "index-url" in caught.value.fix


def test_no_index_is_asked_where_pip_is_told_to_ask_none(host: Host) -> None:
    settings = host.read("[global]\nindex-url = https://a.test/\n", PIP_NO_INDEX="yes")
    with pytest.raises(UnavailableError, match="no-index"):
        find_index(settings, answers(0, "")[0])
