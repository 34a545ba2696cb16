"""Which registry, credentials, authorities and proxies npm's settings name."""

import base64
from pathlib import Path

import pytest

from cloche.errors import UnavailableError
from cloche.settings import Address, NpmSettings, Settings, read_settings


class Host:
    """Files and variables of a host that is made up."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.home.mkdir()
        self.prefix = folder / "prefix"
        (self.prefix / "etc").mkdir(parents=True)
        # Without a PATH of its own, the node of the real host would be found.
        self.environment = {"PATH": str(self.prefix / "bin"), "npm_config_prefix": str(self.prefix)}

    def user(self, text: str) -> None:
        (self.home / ".npmrc").write_text(text)

    def read_all(self, **variables: str) -> Settings:
        return read_settings({**self.environment, **variables}, self.home)

    def read(self, **variables: str) -> NpmSettings:
        return self.read_all(**variables).npm


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def registry(settings: NpmSettings) -> str:
    return str(settings.registry)


def test_without_settings_no_registry_is_named(host: Host) -> None:
    assert host.read() == NpmSettings()


def test_the_environment_comes_before_the_user_and_the_user_before_the_host(host: Host) -> None:
    (host.prefix / "etc/npmrc").write_text("registry=http://global.test/\nstrict-ssl=false\n")
    assert registry(host.read()) == "http://global.test/"
    host.user("registry = http://user.test/")
    assert registry(host.read()) == "http://user.test/"
    assert registry(host.read(npm_config_registry="http://env.test/")) == "http://env.test/"
    assert not host.read().verify_tls  # what is set in one place alone holds


@pytest.mark.parametrize("name", ["npm_config_strict_ssl", "NPM_CONFIG_STRICT_SSL"])
def test_a_variable_counts_in_any_case_with_either_hyphen(host: Host, name: str) -> None:
    assert host.read().verify_tls
    assert not host.read(**{name: "false"}).verify_tls
    assert not host.read(**{name.replace("strict_ssl", "strict-ssl"): "false"}).verify_tls


def test_an_empty_variable_says_nothing(host: Host) -> None:
    host.user("registry=http://user.test/")
    assert registry(host.read(npm_config_registry="")) == "http://user.test/"


def test_the_npmrc_of_a_project_has_no_say(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / ".npmrc").write_text("registry=http://project.test/\n//a.test/:_authToken=t\n")
    monkeypatch.chdir(project)
    assert host.read() == NpmSettings()
    named = host.read(npm_config_userconfig=str(project / ".npmrc"))  # the control
    assert registry(named) == "http://project.test/"


def test_the_user_and_the_global_file_may_be_elsewhere(host: Host, tmp_path: Path) -> None:
    (tmp_path / "user").write_text(f"globalconfig={tmp_path}/global\n@a:registry=http://a.test")
    (tmp_path / "global").write_text("registry=http://global.test")
    settings = host.read(npm_config_userconfig=str(tmp_path / "user"))
    assert registry(settings) == "http://global.test/"
    assert str(settings.registry_of("@a/b")) == "http://a.test/"
    (host.home / "mine").write_text("registry=http://mine.test")
    assert registry(host.read(npm_config_userconfig="~/mine")) == "http://mine.test/"


def test_the_global_file_and_the_built_in_one_are_found_by_where_npm_lies(host: Host) -> None:
    package = host.prefix / "lib/npm"
    (package / "bin").mkdir(parents=True)
    (host.prefix / "bin").mkdir()
    for name in ("npm", "node"):
        (package / f"bin/{name}").write_text("#!/bin/sh\n")
        (package / f"bin/{name}").chmod(0o755)
        (host.prefix / f"bin/{name}").symlink_to(package / f"bin/{name}")
    del host.environment["npm_config_prefix"]
    (package / "npmrc").write_text("registry=http://built-in.test\nproxy=http://proxy.test:3128")
    assert registry(host.read()) == "http://built-in.test/"
    (host.prefix / "etc/npmrc").write_text("registry=http://global.test\n")
    settings = host.read()
    assert registry(settings) == "http://global.test/"
    assert str(settings.proxies["https"]) == "http://proxy.test:3128/"


def test_the_syntax_of_an_npmrc_is_nearly_that_of_ini(host: Host) -> None:
    host.user(
        "\n".join(
            [
                "; a comment",
                "# another",
                "@a:registry = http://a.test/ ; behind it",
                '@b:registry="http://b.test/p;q"',
                "@c:registry='http://c.test'",
                r"@d:registry=http://d.test/x\;y",
                "@e:registry=${SCHEME}://${HOST}/${GONE?}",
                "ca[]=first",
                'ca[]="sec\\nond"',
                "flag",
                "\r[section]",
                "registry=http://section.test/",
            ]
        )
    )
    settings = host.read(SCHEME="http", HOST="e.test")
    assert {scope: str(url) for scope, url in settings.scopes.items()} == {
        "@a": "http://a.test/",
        "@b": "http://b.test/p;q/",
        "@c": "http://c.test/",
        "@d": "http://d.test/x;y/",
        "@e": "http://e.test/",
    }
    assert settings.ca_texts == ("first", "sec\nond")
    assert settings.registry is None


def test_a_scope_has_its_own_registry_and_no_other_package_has_it(host: Host) -> None:
    host.user("registry=http://all.test\n@acme:registry=http://acme.test:8080/npm")
    settings = host.read()
    assert str(settings.registry_of("@acme/tool")) == "http://acme.test:8080/npm/"
    for name in ("@acme2/tool", "acme", "@other/acme"):
        assert str(settings.registry_of(name)) == "http://all.test/"


def authorization(settings: NpmSettings, url: str) -> str | None:
    return settings.authorization_for(Address.parse(url))


def test_credentials_go_to_the_host_and_path_they_are_for_and_nowhere_else(host: Host) -> None:
    host.user(
        "//r.test/:_authToken=whole\n//r.test/team/:_authToken=team\n//r.test:8443/:_auth=cG9ydA==\n"
    )
    settings = host.read()
    assert authorization(settings, "https://r.test/a/-/a-1.0.0.tgz") == "Bearer whole"
    assert authorization(settings, "https://R.test:443/team/a") == "Bearer team"
    assert authorization(settings, "https://r.test/teams/a") == "Bearer whole"
    assert authorization(settings, "https://r.test:8443/a") == "Basic cG9ydA=="
    for url in ("https://r.test:9/a", "https://sub.r.test/a", "https://r.test.evil.test/a"):
        assert authorization(settings, url) is None
    host.user("//r.test/team/:_authToken=team")
    assert authorization(host.read(), "https://r.test/") is None
    assert authorization(host.read(), "https://r.test/team2/") is None


def test_a_user_and_an_encoded_password_are_basic_credentials(host: Host) -> None:
    password = base64.b64encode(b"pass:word").decode()
    host.user(f"//r.test/:username=me\n//r.test/:_password={password}\n//s.test/:username=alone")
    told = authorization(host.read(), "https://r.test/a")
    assert told == "Basic " + base64.b64encode(b"me:pass:word").decode()
    assert authorization(host.read(), "https://s.test/a") is None


def test_a_user_in_an_address_becomes_a_credential_and_leaves_the_address(host: Host) -> None:
    settings = host.read(npm_config_registry="https://me:s%23cret@r.test/npm")
    assert registry(settings) == "https://r.test/npm/"
    told = authorization(settings, "https://r.test/npm/a")
    assert told == "Basic " + base64.b64encode(b"me:s#cret").decode()
    assert authorization(settings, "https://r.test/") is None


def test_a_credential_that_names_an_unset_variable_is_none(host: Host) -> None:
    host.user("//r.test/:_authToken=${TOKEN}")
    assert authorization(host.read(), "https://r.test/a") is None
    assert authorization(host.read(TOKEN="t"), "https://r.test/a") == "Bearer t"


def test_a_token_may_come_by_a_variable_named_after_its_place(host: Host) -> None:
    settings = host.read(**{"npm_config_//r.test/:_authToken": "CamelCase"})
    assert authorization(settings, "https://r.test/a") == "Bearer CamelCase"


def test_no_secret_shows_in_what_is_printed_of_the_settings(host: Host) -> None:
    host.user(
        "registry=https://me:hunter2@r.test/\n//r.test/x/:_authToken=hunter2\n"
        "proxy=http://me:hunter2@proxy.test:3128/"
    )
    settings = host.read_all()
    assert settings.npm.credentials and settings.npm.proxies["https"].user == "me:hunter2"
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in f"{settings.npm.registry} {settings.npm.proxies['https']}"


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("registry=ftp://hunter2.test/", "registry"),
        ("registry=hunter2", "registry"),
        ("registry=http://hunter2.test:port/", "registry"),
        ("registry=http://[hunter2/", "registry"),
        ("registry=http://r.test/?hunter2", "registry"),
        ("registry=http://ex ample.test/hunter2", "registry"),
        ("@a:registry=//hunter2.test/", "@a:registry"),
        ("proxy=socks5://hunter2.test/", "proxy"),
        ("https-proxy=https://hunter2.test/", "proxy"),
        ("//r.test/:_authToken=hunter2\x07", "//r.test/"),
        ("//r.test/:username=a\n//r.test/:_password=hunter2!", "//r.test/:_password"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named_without_its_value(
    host: Host, text: str, key: str
) -> None:
    host.user(text)
    with pytest.raises(UnavailableError, match=f"npm's setting {key}") as caught:
        host.read()
    assert caught.value.fact == "npm-registry"
    assert "hunter2" not in str(caught.value)


def test_authorities_are_those_of_npm_and_of_node_that_are_there(host: Host) -> None:
    (host.home / "ca.pem").write_text("")
    (host.home / "extra.pem").write_text("")
    host.user("cafile=~/ca.pem")
    settings = host.read(NODE_EXTRA_CA_CERTS=str(host.home / "extra.pem"))
    assert settings.ca_files == (host.home / "ca.pem", host.home / "extra.pem")
    assert host.read(NODE_EXTRA_CA_CERTS="/no/such/file").ca_files == (host.home / "ca.pem",)
    host.user("cafile=null\nca=null")
    assert host.read() == NpmSettings()


def proxy(settings: NpmSettings, url: str) -> str | None:
    found = settings.proxy_for(Address.parse(url))
    return None if found is None else str(found)


def test_a_proxy_is_npms_or_that_of_the_usual_variables(host: Host) -> None:
    assert proxy(host.read(), "https://r.test/") is None
    settings = host.read(HTTPS_PROXY="http://tls.test:1", http_proxy="http://plain.test:2")
    assert proxy(settings, "https://r.test/") == "http://tls.test:1/"
    assert proxy(settings, "http://r.test/") == "http://tls.test:1/"
    plain = host.read(http_proxy="http://plain.test:2")
    assert proxy(plain, "https://r.test/") is None
    assert proxy(plain, "http://r.test/") == "http://plain.test:2/"
    host.user("https-proxy=http://npm.test:3")
    assert proxy(host.read(HTTPS_PROXY="http://tls.test:1"), "https://r.test/") == (
        "http://npm.test:3/"
    )


def test_some_domains_are_reached_without_the_proxy(host: Host) -> None:
    host.user("proxy=http://proxy.test:1\nnoproxy=r.test, .inner.test")
    settings = host.read(NO_PROXY="other.test")
    for url in (
        "http://r.test/",
        "http://a.r.test/",
        "https://inner.test/",
        "https://b.inner.test/",
    ):
        assert proxy(settings, url) is None
    for url in ("http://xr.test/", "http://other.test/", "http://test/"):
        assert proxy(settings, url) == "http://proxy.test:1/"
    host.user("proxy=http://proxy.test:1")
    assert proxy(host.read(NO_PROXY="other.test"), "http://other.test/") is None


def test_the_cache_folder_is_ours_the_users_or_below_the_home(host: Host) -> None:
    assert host.read_all().cache_folder == host.home / ".cache/cloche"
    assert host.read_all(XDG_CACHE_HOME="/x").cache_folder == Path("/x/cloche")
    assert host.read_all(XDG_CACHE_HOME="x").cache_folder == host.home / ".cache/cloche"
    both = host.read_all(XDG_CACHE_HOME="/x", CLOCHE_CACHE_DIR="/y")
    assert both.cache_folder == Path("/y")


def test_the_home_is_that_of_the_environment(host: Host) -> None:
    host.user("registry=http://user.test/")
    settings = read_settings({**host.environment, "HOME": str(host.home)})
    assert registry(settings.npm) == "http://user.test/"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("HTTPS://R.Test:443", "https://r.test/"),
        ("http://r.test:80/a?b=c#d", "http://r.test/a?b=c"),
        ("http://r.test:8080/a b", "http://r.test:8080/a%20b"),
        ("http://u:p@r.test/", "http://r.test/"),
        ("http://[::1]:4873/x", "http://[::1]:4873/x"),
        ("http://r.test/\u00e9", "http://r.test/%C3%A9"),
    ],
)
def test_an_address_has_one_spelling(text: str, plain: str) -> None:
    assert str(Address.parse(text)) == plain
    assert str(Address.parse(plain)) == plain


def test_an_address_may_be_relative_to_another() -> None:
    base = Address.parse("https://r.test/a/b")
    assert str(Address.parse("c?d", base)) == "https://r.test/a/c?d"
    assert str(Address.parse("/c", base)) == "https://r.test/c"
    assert str(Address.parse("//s.test/c", base)) == "https://s.test/c"
