"""Nothing that was read as a secret reaches a text for people or a log, in any of the forms that libraries give it."""

from __future__ import annotations

import base64
import logging
import traceback
from urllib.parse import quote

import pytest

from resilience.system.redaction import needles, redact
from resilience.system.secrets import Secret

URL = "https://hooks.slack.com/services/T024BE7LH/B0AbCdEfG/xYz123AbC456"


@pytest.mark.parametrize(
    ("secret", "text", "redacted"),
    [
        (URL, f"POST {URL} failed", "POST https://hooks.slack.com/REDACTED failed"),
        (URL, 'https://hooks.slack.com:443 "POST /services/T024BE7LH/B0AbCdEfG/xYz123AbC456 HTTP/1.1" 404',
         'https://hooks.slack.com:443 "POST /REDACTED HTTP/1.1" 404'),
        (URL, "no such hook: xYz123AbC456", "no such hook: REDACTED"),
        (URL, "our services at hooks.slack.com", "our services at hooks.slack.com"),
        ("https://example.org:8443/x?token=aB3dE6gH9", "url: /x?token=aB3dE6gH9", "url: /REDACTED"),
        ("https://ada:pass%20word9@example.org/", "pass word9 and pass%20word9", "REDACTED and REDACTED"),
        ("hunter2!", "535 hunter2! is wrong", "535 REDACTED is wrong"),
        ("a b+c/d", "a%20b%2Bc%2Fd a+b%2Bc%2Fd", "REDACTED REDACTED"),
        ("http://[bad", "x http://[bad y", "x REDACTED y"),
        ("abc", "abc", "abc"),  # too short to be one: every text would be garbled
    ],
)  # fmt: skip
def test_a_secret_is_replaced_and_the_host_is_kept(secret: str, text: str, redacted: str) -> None:
    assert redact(text, [secret]) == redacted


def test_base64_and_quoted_forms_are_known() -> None:
    coded = base64.b64encode(b"hunter2!").decode()
    assert redact(f"AUTH {coded} {quote('hunter2!')}", ["hunter2!"]) == "AUTH REDACTED REDACTED"


def test_anybodys_password_in_an_address_is_taken_out() -> None:
    assert redact("proxy http://ada:geheim@proxy:3128 is down") == "proxy http://REDACTED@proxy:3128 is down"


def test_a_longer_form_is_replaced_before_its_parts() -> None:
    assert needles(URL)[URL] == "https://hooks.slack.com/REDACTED"
    assert redact(URL, [URL, "T024BE7LH"]) == "https://hooks.slack.com/REDACTED"


def test_no_log_record_shows_a_secret_that_was_read(canary: str, caplog: pytest.LogCaptureFixture) -> None:
    Secret(f"https://hooks.example.org/services/{canary}")
    caplog.set_level(logging.DEBUG)
    for name in ("urllib3.connectionpool", "slack_sdk.web.base_client", "apprise", "", "anything.else"):
        logging.getLogger(name).debug('%s "POST /services/%s HTTP/1.1"', "https://hooks.example.org", canary)
        logging.getLogger(name).warning(f"Retrying: {canary}")
    assert caplog.text.count("REDACTED") == 10 and canary not in caplog.text
    assert "https://hooks.example.org" in caplog.text


def test_a_logged_traceback_shows_no_secret(canary: str, caplog: pytest.LogCaptureFixture) -> None:
    Secret(canary)
    try:
        raise ValueError(f"bad url: /services/{canary}")
    except ValueError:
        logging.getLogger("x").exception("it failed")
    assert "it failed" in caplog.text and "bad url" in caplog.text and canary not in caplog.text


def test_a_log_call_that_cannot_be_formatted_does_no_harm(canary: str, caplog: pytest.LogCaptureFixture) -> None:
    Secret(canary)
    logging.getLogger("x").warning("two %s %s", canary)  # one is missing
    assert canary not in caplog.text


def test_other_log_records_are_left_as_they_are(canary: str, caplog: pytest.LogCaptureFixture) -> None:
    Secret(canary)
    logging.getLogger("x").warning("%s of %d", "one", 2)
    assert caplog.records[-1].args == ("one", 2)
    try:
        raise KeyError("x")
    except KeyError:
        logging.getLogger("x").exception("kept")
    assert caplog.records[-1].exc_info is not None
    assert "KeyError" in "".join(traceback.format_exception(*caplog.records[-1].exc_info))
