"""Keys, ids, addresses and scripts: names, and what may be one."""

from __future__ import annotations

from hashlib import sha1

import pytest

from toril.errors import CrossSlotError, InvalidNameError, InvalidOptionError
from toril.protocol import address, scripts
from toril.protocol.keys import (
    RESERVED_IDS,
    Keys,
    check_job_id,
    check_known_id,
    check_slot_of_each,
    slot,
)


def test_the_keys_of_a_queue():
    keys = Keys("bull", "mail")

    assert (keys.base, keys.wait) == ("bull:mail", "bull:mail:wait")
    assert keys.waiting_children == "bull:mail:waiting-children"
    assert (keys.job("41"), keys.own("replies")) == ("bull:mail:41", "bull:mail:toril:replies")
    assert keys.sibling("sms").wait == "bull:sms:wait"
    assert repr(keys) == "Keys('bull', 'mail')"
    with pytest.raises(AttributeError, match="no key 'wiat'"):
        _ = keys.wiat


def test_keys_in_the_order_of_a_script():
    keys = Keys("bull", "mail")

    assert keys.in_order(("base", "wait"))[0] == ("bull:mail", "bull:mail:wait")
    assert keys.in_order(("base", "wait")) is keys.in_order(("base", "wait"))
    assert keys.in_order_with(("wait", "job"), {"job": "j"}) == ("bull:mail:wait", "j")


@pytest.mark.parametrize("name", ["mail", "{mail}-dlq", "a b", "mail:compensation", "ü", "x" * 256])
def test_queue_names(name):
    assert Keys("bull", name).name == name


@pytest.mark.parametrize("name", ["", " ", " a", "a ", "a:b", "a\n", "x" * 257, None, 5, ":x"])
def test_queue_names_that_are_refused(name):
    with pytest.raises(InvalidNameError, match="queue name"):
        Keys("bull", name)


@pytest.mark.parametrize("prefix", ["", "a b", "a\n", None, "x" * 256])
def test_prefixes_that_are_refused(prefix):
    with pytest.raises(InvalidNameError, match="prefix"):
        Keys(prefix, "mail")


@pytest.mark.parametrize("job_id", ["a", "order-41", "041", "-", "x" * 255])
def test_job_ids(job_id):
    check_job_id(job_id)


@pytest.mark.parametrize(
    "job_id",
    [
        "",
        "a:b",
        "a b",
        "x" * 256,
        None,
        5,
        "41",
        "-41",
        "0",
        "0:a:b",
        "a\x00",
        *sorted(RESERVED_IDS),
    ],
)
def test_job_ids_that_are_refused(job_id):
    """reliability 2.19: an id must not be a key of the queue, nor look like a generated one."""
    with pytest.raises(InvalidNameError):
        check_job_id(job_id)


@pytest.mark.parametrize(
    "job_id",
    [
        "41",
        "repeat:digest:1767312000000",
        "repeat:email:digest:5",
        "j1m",
        "order:7:pay",
        "a:lock",
        " ",
    ],
)
def test_ids_that_others_gave(job_id):
    check_known_id(job_id)


@pytest.mark.parametrize(
    "job_id",
    ["", None, "wait", "repeat:a:b", "repeat:a:1:lock", "groups:1", "lanes:held", "toril:x"],
)
def test_what_can_be_the_id_of_no_job(job_id):
    with pytest.raises(InvalidNameError):
        check_known_id(job_id)


@pytest.mark.parametrize(("key", "number"), [("foo", 12182), ("{foo}bar", 12182), ("{}foo", 9500)])
def test_slots(key, number):
    """As CLUSTER KEYSLOT says."""
    assert slot(key) == number


def test_the_keys_of_a_queue_share_a_slot():
    check_slot_of_each(Keys("{bull}", "a"), Keys("bull", "{a}"), Keys("x", "{bull}-c"))
    with pytest.raises(CrossSlotError, match=r"prefix='\{bull\}', or into the name, '\{mail\}'"):
        check_slot_of_each(Keys("bull", "mail"))


@pytest.mark.parametrize(
    ("url", "kind", "hosts", "service", "options"),
    [
        ("redis://h", "server", (), "", {}),
        ("rediss://h", "server", (), "", {}),
        ("unix:///s", "server", (), "", {}),
        ("redis+cluster://a,b:7", "cluster", (("a", 6379), ("b", 7)), "", {}),
        ("redis+sentinel://a,b:7/main/2", "sentinel", (("a", 26379), ("b", 7)), "main", {"db": 2}),
        ("rediss+cluster://u:p%40@[::1]:5", "cluster", (("::1", 5),), "",
         {"username": "u", "password": "p@"}),
        ("redis+cluster://h?x=1", "cluster", (("h", 6379),), "", {"x": "1"}),
    ],
)  # fmt: skip
def test_addresses(url, kind, hosts, service, options):
    where = address.parse(url)

    assert (where.kind, where.hosts, where.service, where.options) == (
        kind,
        hosts,
        service,
        options,
    )


def test_tls_goes_for_sentinels_too():
    """Whoever names the master can hand out any server: it is spoken to as safely."""
    where = address.parse(
        "rediss+sentinel://:p@a/main?ssl_ca_certs=ca.pem&ssl_check_hostname=false"
        "&sentinel_password=s"
    )

    assert where.is_tls
    certificates = {"ssl_ca_certs": "ca.pem", "ssl_check_hostname": False}
    assert where.options == {"password": "p", **certificates}
    assert where.sentinel_options == {"ssl": True, "password": "s", **certificates}
    assert address.parse("redis+sentinel://a/main").sentinel_options == {}


def test_embedded_addresses():
    assert address.parse("embedded:").directory is None
    assert address.parse("embedded:./data").directory == "./data"
    assert str(address.parse("embedded:./data")) == "embedded:./data"


@pytest.mark.parametrize(
    "url",
    ["http://h", "h:6379", "redis+cluster://", "redis+sentinel://h", "redis+sentinel://h/m/x",
     "redis+pigeon://h", "redis+cluster://[::1"],
)  # fmt: skip
def test_addresses_that_are_refused(url):
    with pytest.raises(InvalidOptionError, match="connection"):
        address.parse(url)


def test_passwords_stay_out_of_messages():
    assert str(address.parse("redis://user:secret@h:1/0")) == "redis://***@h:1/0"
    assert address.redacted("redis://[bad") == "…"
    with pytest.raises(InvalidOptionError) as refused:
        address.parse("http://user:secret@h")
    assert "secret" not in str(refused.value)


def test_every_call_of_the_library_is_made_once():
    names = scripts.names()

    assert {"add", "settle", "sweep"} <= set(names)
    for name in names:
        script = scripts.load(name)
        assert script is scripts.load(name)
        assert script.function == f"{name}_{scripts.library().version}"
        assert script.source.startswith("#!lua")
        assert len(script.sha) == 40
        assert script.key_names[0]


def test_a_call_has_a_text_of_its_own_only_once_a_server_needs_it():
    script = scripts.library().script("settle")

    assert not script.__dict__
    assert script.sha == sha1(script.source.encode()).hexdigest()
    assert script.source is script.source
    assert script.library is scripts.library().source


def test_a_call_without_its_key_line_is_refused():
    library = scripts.library().with_texts({"add": "function calls.add(KEYS, a, ARGV)\nend\n"})

    with pytest.raises(ValueError, match="call 'add' does not begin with"):
        library.script("add")


def test_two_versions_have_different_names():
    library = scripts.library()
    other = library.with_texts({"rooms/clock": library.rooms["clock"] + "clock.X = 1\n"})

    assert library.name == f"toril_{library.version}"
    assert other.name != library.name
    assert other.script("add").function != library.script("add").function


def test_comments_are_for_readers():
    library = scripts.library()
    told = library.with_texts({"rooms/clock": "-- a word\n" + library.rooms["clock"]})

    assert told.name == library.name
