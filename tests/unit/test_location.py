"""Locations: spelling, folding, and what is refused."""

from __future__ import annotations

import os.path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from albedo_provisioner.errors import LocationError
from albedo_provisioner.location import MAX_LENGTH, Location, parse_host

# Path parts that a careless implementation trips over, beside any text without "/" and control characters.
PARTS = st.one_of(
    st.sampled_from([".", "..", "", "~", ":", "a:b", "-x", "a b", " ", "'", '"', "日本", "@", "$HOME", "\\", "#"]),
    st.text(st.characters(exclude_categories=("Cc", "Cs", "Zl", "Zp"), exclude_characters="/"), max_size=12),
)
TAILS = st.lists(PARTS, max_size=6).map("/".join)
NAMES = st.from_regex(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,20}", fullmatch=True)
HOSTS = st.one_of(
    NAMES,
    st.sampled_from(["[::1]", "[fe80::1%eth0]"]),
    st.builds("{}@{}".format, NAMES, st.one_of(NAMES, st.just("[2001:db8::1]"))),
)
SPELLINGS = st.one_of(
    st.builds("{}:/{}".format, HOSTS, TAILS),
    st.builds("{}:~/{}".format, HOSTS, TAILS),
    st.builds("{}:".format, HOSTS),
    st.builds("/{}".format, TAILS),
    st.builds("~/{}".format, TAILS),
)


@given(SPELLINGS)
def test_what_is_printed_parses_to_the_same_location(text: str) -> None:
    location = Location.parse(text)
    assert Location.parse(str(location)) == location
    assert str(Location.parse(str(location))) == str(location)


@given(SPELLINGS)
def test_a_path_is_absolute_or_below_a_home_and_has_no_loose_parts(text: str) -> None:
    path = Location.parse(text).path
    assert path == "~" or path.startswith(("/", "~/"))
    assert path == "/" or not path.endswith("/")
    assert "//" not in path
    parts = path.split("/")
    assert "." not in parts
    # ".." can only remain directly below an unresolved home.
    climbs = parts.count("..")
    assert climbs == 0 or parts[: climbs + 1] == ["~"] + [".."] * climbs


@given(st.one_of(SPELLINGS, st.text(max_size=30), st.text("-@:/[]~.ab%", max_size=16)))
def test_no_accepted_location_can_be_read_as_an_option(text: str) -> None:
    try:
        location = Location.parse(text)
    except LocationError:
        return
    assert not str(location).startswith("-")
    if location.is_remote:
        assert location.host is not None
        assert location.hostname is not None
        assert location.host[0].isalnum() or location.host[0] == "["
        assert location.hostname[0].isalnum() or location.hostname[0] == ":"
        assert location.user is None or location.user[0].isalnum()
        assert not set(location.host) & set(" '\"$`;&|<>\n\0")


@given(st.text(max_size=40))
def test_any_text_gives_a_location_or_a_location_error(text: str) -> None:
    try:
        location = Location.parse(text)
    except LocationError:
        return
    assert Location.parse(str(location)) == location


@given(st.one_of(st.none(), HOSTS, st.text(max_size=8)), st.one_of(TAILS, st.builds("/{}".format, TAILS)))
def test_a_location_built_from_its_fields_is_held_to_the_same_rules(host: str | None, path: str) -> None:
    try:
        location = Location(host, path)
    except LocationError:
        return
    assert Location.parse(str(location)) == location


@pytest.mark.parametrize(
    ("text", "spelled"),
    [
        ("gpu:/srv/x/", "gpu:/srv/x"),
        ("gpu:/srv//x/./y/../z", "gpu:/srv/x/z"),
        ("gpu://srv", "gpu:/srv"),
        ("gpu:/../..", "gpu:/"),
        ("gpu:", "gpu:~"),
        ("gpu:~/", "gpu:~"),
        ("gpu:~/a/../b/", "gpu:~/b"),
        ("gpu:~/../other", "gpu:~/../other"),
        ("ann@gpu:/x", "ann@gpu:/x"),
        ("[::1]:/x", "[::1]:/x"),
        ("ann@[fe80::1%eth0]:~/x", "ann@[fe80::1%eth0]:~/x"),
        ('gpu:/a b/it\'s "日本"', 'gpu:/a b/it\'s "日本"'),
        ("gpu:/a:b", "gpu:/a:b"),
        ("//srv//x/", "/srv/x"),
        ("/a:b/c", "/a:b/c"),
        ("~", "~"),
        ("~/x/", "~/x"),
        ("~ann/x", "~ann/x"),
    ],
)
def test_one_folder_has_one_spelling(text: str, spelled: str) -> None:
    assert str(Location.parse(text)) == spelled


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("proj", "absolute"),
        ("./proj", "absolute"),
        ("a/b:c", "absolute"),
        ("gpu:proj", "write gpu:~/proj"),
        ("gpu:22:/x", "port"),
        ("gpu:/x\n", "control"),
        ("gpu:/x\0y", "control"),
        ("gpu:/x\u2028", "control"),
        ("gpu:/\ud800", "control"),
        ("-oProxyCommand=x:/", "option"),
        ("ann@-oProxyCommand=x:/", "does not start with"),
        ("-ann@gpu:/", "option"),
        ("_x:/", "does not start with"),
        ("my gpu:/x", "space"),
        ("gpu;id:/x", "';'"),
        ("$(id):/x", "does not start with"),
        ("@gpu:/x", "user is empty"),
        (":/x", "host is empty"),
        ("ann@:/x", "host is empty"),
        ("fe80::1:/x", "brackets"),
        ("[gpu]:/x", "IPv6"),
        ("[::1]/x", "must follow"),
        ("[::1:/x", "not closed"),
        ("ssh://gpu/x", "URL"),
        ("gpu:~ann/x", "another user's home"),
        ("/" + "x" * MAX_LENGTH, "longer"),
        ("gpu:/" + "é" * (MAX_LENGTH // 2), "longer"),
        ("g" * (MAX_LENGTH - 1) + ":", "longer"),
    ],
)
def test_a_text_that_is_no_location_is_refused_with_the_reason_and_an_example(text: str, reason: str) -> None:
    with pytest.raises(LocationError, match="looks like") as caught:
        Location.parse(text)
    assert reason in str(caught.value)
    # The message goes to terminals and dialogs: never raw control characters, never pages of text.
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 500


def test_user_and_hostname_are_split_at_the_last_at_sign() -> None:
    assert (Location.parse("gpu:/x").user, Location.parse("gpu:/x").hostname) == (None, "gpu")
    location = Location.parse("ann@example.org@gateway:/x")
    assert (location.user, location.hostname) == ("ann@example.org", "gateway")
    location = Location.parse("ann@[::1]:/x")
    assert (location.user, location.hostname) == ("ann", "::1")
    location = Location.parse("/x")
    assert (location.is_remote, location.user, location.hostname) == (False, None, None)


def test_a_remote_home_is_kept_until_the_host_has_said_what_it_is() -> None:
    location = Location.parse("gpu:~/proj")
    assert location.needs_home
    assert location.expanded() == location, "this machine's home says nothing about another's"
    assert location.resolved("/home/ann") == Location("gpu", "/home/ann/proj")
    assert not location.resolved("/home/ann").needs_home
    assert location.resolved("/") == Location("gpu", "/proj")
    assert Location.parse("gpu:~/../bob").resolved("/home/ann/") == Location("gpu", "/home/bob")
    assert Location.parse("gpu:/srv").resolved("/home/ann") == Location("gpu", "/srv")
    with pytest.raises(LocationError, match="not an absolute path"):
        location.resolved("home/ann")


def test_a_local_home_is_expanded_by_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert Location.parse("~/proj").needs_home
    assert Location.parse("~/proj").expanded() == Location(None, "/home/ann/proj")
    assert Location.parse("~").expanded() == Location(None, "/home/ann")
    assert Location.parse("~root").expanded() == Location(None, os.path.expanduser("~root"))
    with pytest.raises(LocationError, match="no such home"):
        Location.parse("~no-such-account/x").expanded()


@pytest.mark.parametrize(
    ("text", "path"),
    [(".", "/base"), ("..", "/"), ("./x", "/base/x"), ("../x/", "/x"), ("a/b", "/base/a/b"), ("a/b:c", "/base/a/b:c")],
)
def test_relative_paths_are_taken_where_there_is_something_to_be_relative_to(text: str, path: str) -> None:
    assert Location.parse(text, "/base") == Location(None, path)
    with pytest.raises(LocationError, match="must be absolute"):
        Location.parse(text)


def test_a_bare_word_is_no_path_as_it_may_be_a_host() -> None:
    with pytest.raises(LocationError, match=r"write \./gpu, for a home on a host gpu:"):
        Location.parse("gpu", "/base")
    for text in ("", ":", ":/x", "-x/y", "ssh://gpu/x", "x\n/y"):
        with pytest.raises(LocationError):
            Location.parse(text, "/base")
    assert Location.parse("gpu:~", "/base") == Location("gpu", "~")


@pytest.mark.parametrize("value", [None, 3, b"gpu", ["gpu"]])
def test_what_is_no_text_is_refused_in_words(value: object) -> None:
    for read in (parse_host, Location.parse):
        with pytest.raises(LocationError, match="it is no text"):
            read(value)  # type: ignore[arg-type]
