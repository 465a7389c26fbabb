"""Nothing that was read as a secret reaches a text for people or a log, in any of the forms that libraries give it."""

from __future__ import annotations

import base64
import logging
import time
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


KEY = "MIIEpAIBAAKCAQEA" + "x9Yb+/Zq" * 40
PRIVATE = "-----BEGIN {0}PRIVATE KEY{1}-----\n{2}\n-----END {0}PRIVATE KEY{1}-----"
A, D = "AbCdEfGhIjKlMnOpQrStUvWxYz" * 8, "0123456789" * 8
SECRETS = {
    "AWS": "AKIA" + "Q7XRTZ4PLM2VNH5W",
    "AWS, temporary": "ASIA" + "Q7XRTZ4PLM2VNH5W",
    "GitHub": "ghp_" + A[:36],
    "GitHub, fine-grained": "github_pat_" + A[:22] + "_" + A[:59],
    "GitLab": "glpat-" + A[:20],
    "Slack": "xoxb-" + D[:12] + "-" + A[:24],
    "Hugging Face": "hf_" + A[:34],
    "OpenAI": "sk-proj-" + A[:60] + "T3BlbkFJ" + A[:40],
    "Anthropic": "sk-ant-api03-" + A[:93] + "AA",
    "JSON web token": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0." + A[:43],
    "RSA": PRIVATE.format("RSA ", "", KEY),
    "encrypted": PRIVATE.format("EC ", "", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n" + KEY),
    "PGP": PRIVATE.format("PGP ", " BLOCK", KEY),
}


@pytest.mark.parametrize("form", SECRETS)
@pytest.mark.parametrize("around", ["{}", "token is {}.", "Bearer {}", "(key={})", "export X='{}'", "a\n{}\nb"])
def test_secrets_of_common_forms_are_taken_out_whoever_has_read_them(form: str, around: str) -> None:
    for text in (redact(around.format(SECRETS[form])), redact(redact(around.format(SECRETS[form])))):
        assert SECRETS[form] not in text and "REDACTED" in text and KEY[:40] not in text and A[:20] not in text


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("DB_PASSWORD=hunter2x7 psql", "DB_PASSWORD=REDACTED psql"),
        ('"password": "hunter2x7",', '"password": "REDACTED",'),
        ("api_key = 'a8f5f167f44f'", "api_key = 'REDACTED'"),
        ("--api-key=a8f5f167f44f --x", "--api-key=REDACTED --x"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "aws_secret_access_key = REDACTED"),
        ("WANDB_TOKEN=a8f5f167f44f4964", "WANDB_TOKEN=REDACTED"),
        ("GET /x?token=a8f5f167f44f&n=1", "GET /x?token=REDACTED&n=1"),
    ],
)
def test_what_is_assigned_to_the_name_of_a_secret_is_taken_out(text: str, redacted: str) -> None:
    assert redact(text) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "step 12 tokens=123456 pad_token_id=50256 eos_token='</s>' token: 17",
        "password = None, password=$PASSWORD api_key=<your key> password: incorrect",
        "password_file = '/home/ada/.password' password_variable = \"SMTP_PASSWORD\"",
        "disk-usage-of-a-very-long-name-with-dashes and task-0123456789012345678901",
        "s3://bucket/key?versionId=3 https://example.org/a@b key=value max_new_tokens=2048",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "piece", ["eyJ", "eyJa.eyJ", "://", "-----BEGIN PRIVATE KEY-----", "password=", "sk-", "a" * 1000 + "://", "x= "]
)
def test_the_cost_grows_with_the_length_alone(piece: str) -> None:
    def cost_s(count: int) -> float:
        began = time.process_time()
        redact(piece * count)
        return time.process_time() - began

    cost_s(10)
    size = 200_000 // len(piece)
    assert cost_s(size) < 4.0


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
