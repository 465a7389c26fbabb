"""The door to web servers: addresses, proxies, Retry-After, and errors that name nothing but the host."""

from __future__ import annotations

import traceback

import pytest

from resilience.errors import DeliveryError, SettingsError
from resilience.system.http import Answer, check_url, is_loopback, proxies_for, quoted, refusal, request, retry_after_s
from resilience.system.secrets import Secret
from tests.alerts.channels.servers import free_port, hangs_up, says, serving, silent


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        ("0", 0.0),
        ("120", 120.0),
        (" 7 ", 7.0),
        ("2.5", 2.5),
        ("301", 300.0),
        ("999999999999999999", 300.0),
        ("", None),
        ("soon", None),
        ("-1", None),
        ("nan", None),
        ("inf", None),
        ("1e3", None),
        ("١٢", 12.0),
        ("9" * 10_000, None),
    ],
)
def test_retry_after_is_seconds_within_reason(value: str, wait_s: float | None) -> None:
    assert retry_after_s(value) == wait_s


@pytest.mark.parametrize(
    ("value", "date", "wait_s"),
    [
        ("Wed, 21 Oct 2015 07:29:00 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 60.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2099 07:27:00 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 300.0),
        ("Wed, 21 Oct 2015 07:29:00 GMT", "", None),
        ("Wed, 99 Foo 2015", "Wed, 21 Oct 2015 07:28:00 GMT", None),
    ],
)
def test_a_date_is_measured_by_the_servers_own_clock(value: str, date: str, wait_s: float | None) -> None:
    assert retry_after_s(value, date) == wait_s


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST", "127.0.0.1", "127.8.9.1", "::1", "[::1]"])
def test_this_very_machine_is_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["", "localhost.example.org", "127.0.0.1.example.org", "10.0.0.1", "1127.0.0.1"])
def test_no_other_machine_is_taken_for_this_one(host: str) -> None:
    assert not is_loopback(host)


@pytest.mark.parametrize(
    "url", ["", "example.org", "ftp://x/", "file:///etc/passwd", "https:///x", "https://x y/", "https://x/\r\nX: y",
            "https://[::1/", "https://x:0/", "https://x:port/", "javascript:alert(1)"],
)  # fmt: skip
def test_what_is_no_web_address_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="is not a web address"):
        check_url(url, "url")


def test_plain_http_is_for_this_machine_or_when_it_is_allowed() -> None:
    check_url("http://127.0.0.1:8080/x", "url")
    check_url("http://gateway/x", "url", allow_http=True)
    with pytest.raises(SettingsError) as caught:
        check_url("http://gateway/secret", "url")
    assert "gateway" in caught.value.message and "secret" not in caught.value.message


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({}, "https://x.org/", None),
        ({"https_proxy": "http://p:3128"}, "https://x.org/", "http://p:3128"),
        ({"HTTPS_PROXY": "p:3128"}, "https://x.org/", "http://p:3128"),
        ({"HTTPS_PROXY": "http://big", "https_proxy": "http://small"}, "https://x.org/", "http://small"),
        ({"all_proxy": "http://p"}, "https://x.org/", "http://p"),
        ({"HTTP_PROXY": "http://evil"}, "http://x.org/", None),
        ({"http_proxy": "http://p"}, "http://x.org/", "http://p"),
        ({"https_proxy": "http://p", "no_proxy": "x.org"}, "https://x.org/", None),
        ({"https_proxy": "http://p", "no_proxy": ".org"}, "https://x.org/", None),
        ({"https_proxy": "http://p", "NO_PROXY": "*"}, "https://x.org/", None),
        ({"https_proxy": "http://p", "no_proxy": "y.org"}, "https://x.org/", "http://p"),
        ({"https_proxy": "http://p"}, "https://localhost:1/", None),
    ],
)
def test_the_proxy_is_the_environments(environ: dict[str, str], url: str, proxy: str | None) -> None:
    assert list(proxies_for(url, environ).values()) == ([proxy] if proxy else [])


@pytest.mark.parametrize(
    ("status", "transient"),
    [(200, None), (204, None), (301, False), (400, False), (401, False), (408, True), (413, False), (425, True),
     (429, True), (500, True), (504, True), (599, True)],
)  # fmt: skip
def test_a_status_is_a_delivery_or_a_refusal_that_lasts_or_does_not(status: int, transient: bool | None) -> None:
    error = refusal(Answer(status, {}, "because\r\n\x1b[2J of that"), "pager.example")
    assert (error.transient if error else None) is transient
    if error:
        assert error.message == f"pager.example answered {status}: because [2J of that"


def test_what_a_server_says_is_one_short_line() -> None:
    assert quoted("a\n\tb\0c") == "a b c" and len(quoted("x" * 10_000)) == 200


@pytest.mark.parametrize(
    "handler",
    [hangs_up, silent, says(b"nonsense\r\n\r\n"), says(b"HTTP/1.1 200 OK\r\nbad header\r\n" * 3 + b"\r\n"), None],
    ids=["resets", "is silent", "speaks nonsense", "has bad headers", "is not there"],
)
def test_an_error_shows_no_part_of_the_address_but_its_host(handler: object, canary: str) -> None:
    def ask(port: int) -> DeliveryError | None:
        url = Secret(f"http://ada:{canary}@127.0.0.1:{port}/services/{canary}?token={canary}")
        try:
            request(url.reveal(), b"{}", environ={}, timeout_s=0.4)
        except DeliveryError as error:
            return error
        return None

    if handler is None:
        error = ask(free_port())
    else:
        with serving(handler) as port:  # type: ignore[arg-type]
            error = ask(port)
    if error is not None:
        assert error.transient and "127.0.0.1" in error.message
        shown = "".join(traceback.format_exception(error)) + repr(vars(error))
        assert canary not in shown
        assert error.__context__ is None and error.__cause__ is None  # requests' own holds the address


@pytest.mark.parametrize("where", range(150, 260, 7))
def test_a_secret_is_taken_out_before_a_text_is_cut(where: int) -> None:
    secret = "aB3dE6gH9kL2"
    shown = quoted("x" * where + secret + "y" * 100, [secret])
    assert not any(secret[:length] in shown for length in range(4, len(secret)))
    assert len(shown) <= 200


def test_debug_logs_show_no_secret_either(canary: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    with serving(says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")) as port:
        url = Secret(f"http://127.0.0.1:{port}/services/{canary}")
        request(url.reveal(), b"{}", environ={}, timeout_s=2)
    assert "/REDACTED" in caplog.text and canary not in caplog.text  # urllib3 logs the path of each request


def test_a_ca_file_that_is_missing_is_told(canary: str) -> None:
    with pytest.raises(SettingsError) as caught:
        request(f"https://127.0.0.1:{free_port()}/{canary}", b"", environ={}, timeout_s=2, ca_file="/nowhere/ca.pem")
    assert "/nowhere/ca.pem" in caught.value.message and canary not in caught.value.message


def test_a_broken_bundle_of_the_environment_is_told_and_may_be_right_on_another_node(canary: str) -> None:
    environ = {"REQUESTS_CA_BUNDLE": "/nowhere/bundle.pem"}
    with pytest.raises(DeliveryError) as caught:
        request(f"https://127.0.0.1:{free_port()}/{canary}", b"", environ=environ, timeout_s=2)
    assert caught.value.transient and "/nowhere/bundle.pem" in caught.value.message
