"""An index's page of a project, in either form, as a stranger may have made it."""

import json

import pytest

from cloche.egress.simple_page import read_page, write_page
from cloche.model.wheel import normalise_name, read_wheel_name
from cloche.settings.address import Address

BASE = Address.parse("https://a.test/simple/x/")
A = "a" * 64


def test_both_forms_say_the_same():
    told = {
        "files": [
            {"filename": "x-1-py3-none-any.whl", "url": "../../f/x-1-py3-none-any.whl",
             "hashes": {"sha256": A.upper()}, "requires-python": ">=3.8"},
        ]
    }  # fmt: skip
    html = f"""<!DOCTYPE html><base href="https://a.test/simple/x/"><a
        href="../../f/x-1-py3-none-any.whl#sha256={A}" data-requires-python="&gt;=3.8">x</a>"""
    (listed,) = read_page(json.dumps(told).encode(), BASE)
    assert [listed] == read_page(html.encode(), BASE)
    assert (str(listed.address), listed.sha256) == ("https://a.test/f/x-1-py3-none-any.whl", A)
    assert listed.requires_python == ">=3.8"


@pytest.mark.parametrize("url", ["http://a.test/x.whl", "file:///etc/passwd", "ftp://a.test/x", ""])
def test_a_file_that_is_not_to_be_had_over_tls_is_left_out(url):
    told = {"files": [{"filename": "x", "url": url, "hashes": {}}]}
    if url:
        assert read_page(json.dumps(told).encode(), BASE) == []
    assert read_page(f'<a href="{url}">x</a>'.encode(), BASE) == []


@pytest.mark.parametrize("stated", [None, 1, [], "é", "x" * 300, "a\nb"])
def test_what_a_page_says_of_pythons_is_taken_only_where_it_can_be_so(stated):
    told = {"files": [{"filename": "x", "url": "x", "hashes": {}, "requires-python": stated}]}
    assert read_page(json.dumps(told).encode(), BASE)[0].requires_python is None


def test_what_the_box_is_given_leads_to_the_mirror_alone():
    told = {"files": [{"filename": "x-1-py3-none-any.whl", "url": "u", "hashes": {"sha256": A}}]}
    page = json.loads(write_page("x", read_page(json.dumps(told).encode(), BASE), "http://m"))
    assert page["files"][0]["url"] == f"http://m/files/x/{A}/x-1-py3-none-any.whl"
    assert "a.test" not in json.dumps(page)


@pytest.mark.parametrize(
    ("file_name", "told"),
    [
        ("a_b-1.0-py3-none-any.whl", ("a-b", "1.0")),
        ("A.B-1.0+cpu-1-cp311-cp311-manylinux_2_17_x86_64.whl", ("a-b", "1.0+cpu")),
        ("a-1.0.tar.gz", None),
        ("a-1.0.whl", None),
        ("../a-1.0-py3-none-any.whl", None),
        ("a-1.0-py3-none-any\n.whl", None),
        ("-1.0-py3-none-any.whl", None),
    ],
)
def test_a_wheel_is_told_by_its_file_name(file_name, told):
    assert read_wheel_name(file_name) == told


@pytest.mark.parametrize("name", ["", ".", "-a", "a-", "a/b", "a b", "é", "a" * 300])
def test_what_is_no_name_of_a_project_has_no_normal_form(name):
    assert normalise_name(name) is None
    assert normalise_name("A_.b--C") == "a-b-c"
