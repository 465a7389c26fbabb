"""Mail through real servers: delivered, or rejected with an explanation, within the time limit."""

from __future__ import annotations

import email.message
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from email import message_from_bytes, message_from_string, policy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.alerts.alert import Alert, Reason
from resilience.alerts.channels._email_smtp import PARTIAL_TRIES
from resilience.alerts.channels.email import CHANNEL, EmailSettings, envelope_address, port_of, tls_of
from resilience.errors import SettingsError
from resilience.finding import Verdict
from resilience.system.ports import System
from tests.alerts.channels.alerts import a_notice, an_alert, hostile, resolved
from tests.alerts.channels.sender import Sender
from tests.alerts.channels.servers import (
    Certificate,
    Mailbox,
    drips,
    free_port,
    hangs_up,
    make_certificate,
    serving,
    silent,
    smtp_server,
    takes_at_most,
)

TO = EmailSettings(to=("ada@example.org", "Bob <bob@example.org>"), sender="resil@example.org", timeout_s=5)


SENDER = Sender(CHANNEL)
refused = SENDER.refused


def send(
    settings: EmailSettings, system: System, alert: Alert | None = None, thread: Mapping[str, str] | None = None
) -> str:
    """Deliver an alert and return the answer."""
    return SENDER.send(settings, system, alert, thread)["answer"]


@contextmanager
def served(mailbox: Mailbox, server: Mapping[str, Any] | None = None, **changes: Any) -> Iterator[EmailSettings]:
    """Settings whose mail goes to a real server; `server` is handed to that, `changes` to the settings."""
    with smtp_server(mailbox, **(server or {})) as port:
        yield replace(TO, **{"host": "127.0.0.1", "port": port, **changes})


def deliver(
    system: System, alert: Alert | None = None, server: Mapping[str, Any] | None = None, **changes: Any
) -> Mailbox:
    """The mailbox of a real server after an alert."""
    mailbox = Mailbox()
    with served(mailbox, server, **changes) as settings:
        send(settings, system, alert)
    return mailbox


def by_password(certificate: Certificate) -> dict[str, str]:
    """Settings of a server that wants STARTTLS and the canary."""
    return {
        "host": "localhost",
        "tls": "starttls",
        "ca_file": str(certificate.file),
        "username": "ada",
        "password_variable": "RESIL_CANARY",
    }


def received(mailbox: Mailbox, number: int = 0) -> email.message.EmailMessage:
    content = mailbox.envelopes[number].content
    assert isinstance(content, bytes)
    return message_from_bytes(content, policy=policy.default)


def body_of(message: email.message.EmailMessage, kind: str) -> str:
    part = message.get_body((kind,))
    assert part is not None
    return str(part.get_content())


def test_a_mail_has_problem_place_time_and_advice(system: System) -> None:
    mailbox = Mailbox()
    with served(mailbox) as settings:
        answer = send(settings, system)
    message = received(mailbox)
    assert message["Subject"] == "[resil] CRITICAL: /scratch: 98% used, 3.1 days left at 18.4 TB a day (3f9a1c)"
    assert mailbox.envelopes[0].rcpt_tos == ["ada@example.org", "bob@example.org"]
    assert mailbox.envelopes[0].mail_from == "resil@example.org"
    assert message["To"] == "ada@example.org, Bob <bob@example.org>"
    for kind in ("plain", "html"):
        text = body_of(message, kind)
        for part in ("98% used", "/scratch", "login1", "2 h 5 min", "resil watch fs --top", "größte",
                     "resil alert ack 3f9a1c", "/home/ada/my gpt"):  # fmt: skip
            assert part in text, (kind, part)
    assert "cd '/home/ada/my gpt' && resil alert ack 3f9a1c" in body_of(message, "plain")
    assert message["Auto-Submitted"] == "auto-generated"
    assert message["X-Resil-Episode"] == "3f9a1c"
    assert message["Date"].datetime.timestamp() == an_alert().time
    assert "ada@example.org, bob@example.org" in answer


def test_a_resend_has_the_same_message_id_and_a_thread_has_one_parent() -> None:
    first, again = (CHANNEL.compose(an_alert(), TO, {}) for _ in range(2))
    worse = CHANNEL.compose(an_alert(id="3f9a1c-9", reason=Reason.WORSE), TO, {})
    over = CHANNEL.compose(resolved(), TO, {"message_id": first.headers["Message-ID"]})
    assert first.headers["Message-ID"] == again.headers["Message-ID"]
    assert len({mail.headers["Message-ID"] for mail in (first, worse, over)}) == 3
    roots = {mail.headers["References"].split()[0] for mail in (first, worse, over)}
    assert len(roots) == 1
    assert over.headers["In-Reply-To"] == first.headers["Message-ID"]
    assert over.subject.startswith("[resil] RESOLVED: /scratch: 41% used")


def test_an_odd_id_makes_a_message_id_all_the_same() -> None:
    mail = CHANNEL.compose(an_alert(id="a b>\r\nBcc: x@y", thread="\0"), TO, {"message_id": "<x>\r\nBcc: eve"})
    assert "In-Reply-To" not in CHANNEL.compose(an_alert(), TO, {}).headers  # the first is no reply
    assert "\n" not in mail.headers["Message-ID"] + mail.headers["References"] + mail.headers["In-Reply-To"]
    assert mail.headers["Message-ID"].count("<") == 1


def test_a_job_name_cannot_add_a_header_or_a_recipient(system: System) -> None:
    mailbox = deliver(system, hostile("gpt\r\nBcc: eve@example.org\r\nX-Evil: 1\r\n\r\nbody"))
    message = received(mailbox)
    assert "Bcc" not in message and "X-Evil" not in message
    assert mailbox.envelopes[0].rcpt_tos == ["ada@example.org", "bob@example.org"]
    assert "\n" not in message["Subject"]


def test_html_is_escaped_and_styled_inline() -> None:
    html = CHANNEL.compose(hostile("<script>alert(1)</script>"), TO, {}).html
    assert "<script" not in html and "&lt;script&gt;" in html
    assert 'name="color-scheme" content="light dark"' in html
    assert "<style" not in html and "background" not in html  # dark mode keeps its own


def test_a_mail_of_megabytes_is_cut_and_says_so(system: System) -> None:
    with takes_at_most(10):
        mailbox = deliver(system, an_alert(*(a_notice(f"{n}", evidence=("y" * 10_000_000,) * 3) for n in range(40))))
    content = mailbox.envelopes[0].content
    assert content is not None and len(content) < 1_500_000
    assert "more)" in body_of(received(mailbox), "plain") and "And 15 more" in body_of(received(mailbox), "plain")


def test_starttls_and_a_password_deliver(system: System, certificate: Certificate, canary: str) -> None:
    mailbox = Mailbox()
    server = {"tls_context": certificate.server_context(), "require_starttls": True, "password": canary}
    with served(mailbox, server, **by_password(certificate)) as settings:
        assert "accepted the mail" in send(settings, system)
    assert mailbox.logins == [("ada", canary)]
    assert len(mailbox.envelopes) == 1


def test_implicit_tls_delivers(system: System, certificate: Certificate) -> None:
    server = {"implicit": certificate.server_context()}
    assert len(deliver(system, None, server, tls="implicit", ca_file=str(certificate.file)).envelopes) == 1


@pytest.mark.parametrize("tls", ["starttls", "implicit"])
def test_a_self_signed_certificate_is_rejected_and_nothing_is_sent(
    system: System, certificate: Certificate, tls: str
) -> None:
    mailbox = Mailbox()
    server = {"tls_context" if tls == "starttls" else "implicit": certificate.server_context()}
    with served(mailbox, server, tls=tls) as settings:
        error = refused(settings, system)
    assert "certificate" in error.message and "ca_file" in error.hint
    assert not mailbox.envelopes


def test_a_certificate_for_another_host_is_refused(system: System, tmp_path: Path, certificate: Certificate) -> None:
    other = make_certificate(tmp_path, names="DNS:mail.example.org")
    server = {"tls_context": other.server_context()}
    with served(Mailbox(), server, tls="starttls", ca_file=str(other.file)) as settings:
        assert "certificate" in refused(settings, system).message


def test_a_wrong_password_is_permanent_and_is_not_shown(system: System, certificate: Certificate, canary: str) -> None:
    server = {"tls_context": certificate.server_context(), "password": "another"}
    with served(Mailbox(), server, **by_password(certificate)) as settings:
        error = refused(settings, system)
    assert not error.transient and "535" in error.message and canary not in error.message + error.hint


def test_a_server_that_quotes_the_password_does_not_make_us_show_it(system: System, canary: str) -> None:
    import base64

    def quotes(connection: object, stop: object) -> None:
        talk = connection.makefile("rwb")  # type: ignore[attr-defined]
        talk.write(b"220 hi\r\n")
        talk.flush()
        for line in talk:
            if line.upper().startswith(b"EHLO"):
                talk.write(b"250-hi\r\n250 AUTH PLAIN\r\n")
            elif line.upper().startswith(b"AUTH PLAIN"):
                told = line.split()[-1]
                talk.write(b"535 bad: " + told + b" " + base64.b64decode(told).replace(b"\0", b" ") + b"\r\n")
            else:
                talk.write(b"535 no\r\n")
            talk.flush()

    settings = replace(TO, host="127.0.0.1", username="ada", password_variable="RESIL_CANARY")
    with serving(quotes) as port:
        error = refused(replace(settings, port=port), system)
    coded = base64.b64encode(f"\0ada\0{canary}".encode()).decode()
    assert "535" in error.message and "REDACTED" in error.message
    assert canary not in repr(vars(error)) and coded not in repr(vars(error))


def all_refused(reply: str) -> Mailbox:
    return Mailbox(refuse=dict.fromkeys(("ada@example.org", "bob@example.org"), reply))


# By claim: the server, settings, whether another try may help, and parts of the message and of the hint.
REFUSALS: dict[str, tuple[Mailbox, dict[str, Any], bool, str, str]] = {
    "greylisted": (all_refused("451 greylisted, come back"), {}, True, "greylisted, come back", ""),
    "all mailboxes are busy": (all_refused("450 busy"), {}, True, "busy", ""),
    "nobody is known": (all_refused("550 no such user"), {}, False, "no such user", ""),
    "full, after the mail was sent": (Mailbox(data_reply="452 full"), {}, True, "452 full", ""),
    "spam, after the mail was sent": (Mailbox(data_reply="554 spam"), {}, False, "554 spam", ""),
    "the sender is refused": (Mailbox(sender_reply="553 not yours"), {}, False, "", "set sender"),
    "a password is wanted": (
        Mailbox(sender_reply="530 5.7.0 Authentication required"), {}, False, "", "username and password_file",
    ),
    "no STARTTLS, and nothing in the clear": (
        Mailbox(), {"tls": "starttls"}, False, "does not offer STARTTLS", 'tls = "none"',
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_the_servers_reply_determines_whether_to_retry_and_the_hint(system: System, name: str) -> None:
    mailbox, changes, transient, message, hint = REFUSALS[name]
    with served(mailbox, **changes) as settings:
        error = refused(settings, system)
    assert error.transient is transient
    assert message in error.message and hint in error.hint
    assert len(mailbox.envelopes) == ("after the mail was sent" in name)


def test_greylisting_ends_with_a_delivery(system: System) -> None:
    mailbox = all_refused("451 later")
    with served(mailbox) as settings:
        assert refused(settings, system).transient
        mailbox.refuse.clear()
        send(settings, system)
    assert len(mailbox.envelopes) == 1


def test_one_rejected_recipient_is_reported_and_the_others_get_the_mail(system: System) -> None:
    mailbox = Mailbox(refuse={"bob@example.org": "550 bob has left"})
    with served(mailbox) as settings:
        answer = send(settings, system)
    assert mailbox.envelopes[0].rcpt_tos == ["ada@example.org"]
    assert "accepted the mail for ada@example.org; rejected: bob@example.org (550 bob has left)" in answer


def test_a_temporarily_rejected_recipient_gets_the_mail_later_and_no_recipient_twice(system: System) -> None:
    mailbox = Mailbox(refuse={"bob@example.org": "451 greylisted"})
    with served(mailbox) as settings:
        error = refused(settings, system)
        assert error.transient and "accepted the mail for ada@example.org, but not for bob" in error.message
        again = refused(settings, system, error.memory)
        mailbox.refuse.clear()
        answer = send(settings, system, thread=again.memory)
    assert [envelope.rcpt_tos for envelope in mailbox.envelopes] == [["ada@example.org"], ["bob@example.org"]]
    assert "accepted the mail for bob@example.org" in answer


def test_a_mailbox_that_stays_full_does_not_delay_the_other_recipients(system: System) -> None:
    mailbox = Mailbox(refuse={"bob@example.org": "452 mailbox full"})
    memory: dict[str, str] = {}
    with served(mailbox) as settings:
        for _ in range(PARTIAL_TRIES):
            memory = refused(settings, system, memory).memory
        answer = send(settings, system, thread=memory)
    assert len(mailbox.envelopes) == 1 and "rejected: bob@example.org (452 mailbox full)" in answer


def test_a_server_that_drops_after_data_may_have_the_mail_and_gets_the_same_id_again(system: System) -> None:
    mailbox = Mailbox(drop_after_data=True)
    with served(mailbox) as settings:
        error = refused(settings, system)
        mailbox.drop_after_data = False
        send(settings, system)
    assert error.transient and "may arrive twice" in error.message
    assert received(mailbox, 0)["Message-ID"] == received(mailbox, 1)["Message-ID"]


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        (silent, "did not answer within 0.3 s"),
        (drips(b"220-hello\r\n"), "did not answer within 0.3 s"),
        (drips(b"2", 0.01), "did not answer within 0.3 s"),
        (hangs_up, "closed the connection"),
    ],
    ids=["silent", "a tarpit of lines", "a line without end", "hangs up"],
)
@pytest.mark.parametrize("tls", ["none", "implicit"])
def test_a_bad_server_fails_within_the_time_limit(system: System, handler: object, said: str, tls: str) -> None:
    with serving(handler) as port, takes_at_most(5):  # type: ignore[arg-type]
        error = refused(replace(TO, host="127.0.0.1", port=port, tls=tls, timeout_s=0.3), system)
    assert error.transient
    if tls == "none" and handler is not hangs_up:
        assert said in error.message


def test_an_unresolvable_name_is_transient(system: System) -> None:
    with takes_at_most(6):
        error = refused(replace(TO, host="mail.invalid", tls="none", timeout_s=4), system)
    assert error.transient


def test_an_ipv6_server_delivers(system: System) -> None:
    import socket

    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 loopback here: {error}")
    settings = replace(TO, host="[::1]", port=free_port())
    assert "::1" in refused(settings, system).message  # nothing listens there; the address was understood


def test_an_address_that_is_not_ascii_needs_a_server_that_says_so(system: System) -> None:
    to = ("jürgen@münchen.example",)
    with served(Mailbox(), {"enable_SMTPUTF8": False}, to=to) as settings:
        error = refused(settings, system)
    assert not error.transient and "SMTPUTF8" in error.message
    mailbox = deliver(system, None, {"enable_SMTPUTF8": True}, to=to)
    assert mailbox.envelopes[0].rcpt_tos == ["jürgen@xn--mnchen-3ya.example"]


def test_a_domain_that_is_not_ascii_is_written_as_servers_want_it(system: System) -> None:
    mailbox = deliver(system, to=("Jürgen, Dr. <j@münchen.example>",))
    assert mailbox.envelopes[0].rcpt_tos == ["j@xn--mnchen-3ya.example"]
    assert received(mailbox)["To"].addresses[0].display_name == "Jürgen, Dr."


def sendmail(tmp_path: Path, code: int = 0, more: str = "") -> tuple[str, ...]:
    """A program that writes down how it was called."""
    program = tmp_path / "sendmail"
    program.write_text(
        f"#!/bin/sh\ncat > {tmp_path}/stdin\nprintf '%s\\n' \"$@\" > {tmp_path}/argv\nenv > {tmp_path}/env\n"
        f"{more}\nexit {code}\n"
    )
    program.chmod(0o755)
    return (str(program), "-i")


def test_sendmail_gets_the_mail_on_its_standard_input_and_no_secret_in_its_environment(
    system: System, tmp_path: Path, canary: str
) -> None:
    answer = send(replace(TO, sendmail=sendmail(tmp_path)), system)
    message = message_from_string((tmp_path / "stdin").read_text(), policy=policy.default)
    assert message["Subject"].startswith("[resil] CRITICAL")
    argv = (tmp_path / "argv").read_text().split()
    assert argv == ["-i", "-f", "resil@example.org", "ada@example.org", "bob@example.org"]
    assert "\r" not in (tmp_path / "stdin").read_bytes().decode() and "accepted the mail" in answer
    environment = (tmp_path / "env").read_text()
    assert "PATH=" in environment and canary not in environment and "RESIL_CANARY" not in environment


@pytest.mark.parametrize(("code", "transient"), [(75, True), (1, True), (67, False), (64, False)])
def test_sendmail_says_by_its_exit_code_whether_it_helps_to_try_again(
    system: System, tmp_path: Path, code: int, transient: bool
) -> None:
    error = refused(replace(TO, sendmail=sendmail(tmp_path, code, "echo 'queue is full' >&2")), system)
    assert error.transient is transient and "queue is full" in error.message


def test_a_sendmail_that_hangs_is_killed_in_time(system: System, tmp_path: Path) -> None:
    with takes_at_most(5):
        error = refused(replace(TO, sendmail=sendmail(tmp_path, 0, "sleep 60"), timeout_s=0.3), system)
    assert error.transient and "0.3 s" in error.message


def test_without_a_sender_this_account_is_the_sender(system: System, tmp_path: Path) -> None:
    send(replace(TO, sender="", sendmail=sendmail(tmp_path)), system)
    assert f"From: {system.host.user}@login1" in (tmp_path / "stdin").read_text()


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"to": ()}, "recipient"),
        ({"to": ("ada@example.org\r\nBcc: eve@x.org",)}, "not a mail address"),
        ({"to": ("-oQ/tmp@example.org",)}, "not a mail address"),
        ({"to": ("a@b@c",)}, "not a mail address"),
        ({"to": ("",)}, "not a mail address"),
        ({"sender": "x y"}, "not a mail address"),
        ({"tls": "ssl"}, "is unknown"),
        ({"port": 70000}, "not a port number"),
        ({"timeout_s": 0.0}, "must be positive"),
        ({"host": "smtp://x"}, "not a host name"),
        ({"username": "ada"}, "password_file"),
        ({"password_file": "/x"}, "username"),
        ({"username": "a", "password_file": "/x", "password_variable": "X"}, "both"),
        ({"username": "a", "password_file": "/x", "host": "mail.example.org", "tls": "none"}, "unencrypted"),
        ({"host": "x", "sendmail": ("y",)}, "host and sendmail are both set"),
        ({"subject_prefix": "a\r\nBcc: x"}, "one printable line"),
    ],
)  # fmt: skip
def test_invalid_settings_are_rejected(wrong: dict[str, object], word: str) -> None:
    assert word in SENDER.objection(replace(TO, **wrong))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "tls", "port"),
    [
        ({"host": "smtp.example.org"}, "starttls", 25),
        ({"host": "smtp.example.org", "username": "ada"}, "starttls", 587),
        ({"host": "smtp.example.org", "port": 465}, "implicit", 465),
        ({"host": "smtp.example.org", "tls": "implicit"}, "implicit", 465),
        ({"host": "localhost"}, "none", 25),
        ({"host": "127.0.0.1"}, "none", 25),
        ({"host": "smtp.example.org", "tls": "none"}, "none", 25),
    ],
)
def test_default_ports_and_tls(given: dict[str, object], tls: str, port: int) -> None:
    settings = replace(TO, **given)  # type: ignore[arg-type]
    assert (tls_of(settings), port_of(settings)) == (tls, port)


def test_an_invalid_ca_file_is_a_settings_error(system: System, tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("no certificate")
    for file in (tmp_path / "ca.pem", tmp_path / "missing.pem"):
        with pytest.raises(SettingsError, match="ca_file"):
            send(replace(TO, host="127.0.0.1", port=1, tls="starttls", ca_file=str(file)), system)


def test_addresses_with_and_without_names_are_accepted() -> None:
    assert envelope_address("Ada L <ada@example.org>") == "ada@example.org"
    assert envelope_address("root") == "root"


def test_the_subject_of_many_says_how_many() -> None:
    alert = an_alert(a_notice("aaaaaa"), a_notice("bbbbbb", verdict=Verdict.WARNING), total=12)
    assert "12 incidents, first /scratch" in CHANNEL.compose(alert, TO, {}).subject


def test_a_mail_can_be_read_before_it_is_sent() -> None:
    assert "Subject: [resil] CRITICAL" in CHANNEL.compose(an_alert(), TO, {}).as_string()


def test_a_subject_that_is_not_ascii_arrives_as_it_was(system: System) -> None:
    alert = an_alert(a_notice(subject="/größe/日本", summary="voll 🔥, " + "ä" * 90))
    mailbox = deliver(system, alert, {"enable_SMTPUTF8": False})
    message = received(mailbox)
    assert message["Subject"] == CHANNEL.compose(alert, TO, {}).subject
    assert "日本" in message["Subject"] and "voll 🔥" in body_of(message, "plain")
    content = mailbox.envelopes[0].content
    assert isinstance(content, bytes) and content.isascii()


@settings(max_examples=80, deadline=None)
@given(st.text(st.sampled_from("ab.@<> \"'(),;:-+ü_日=?\t\r\n"), max_size=12))
def test_an_address_that_is_accepted_can_be_written_into_a_mail(address: str) -> None:
    try:
        written = envelope_address(address)
    except SettingsError:
        return
    assert not written.startswith("-") and written.isprintable() and " " not in written
    mail = CHANNEL.compose(an_alert(), replace(TO, to=(address,), sender=address), {})
    for utf8 in (False, True):
        if utf8 or written.isascii():
            head = mail.content(utf8=utf8).partition(b"\r\n\r\n")[0]
            assert head.count(b"\r\nTo: ") == 1 and b"\r\nBcc" not in head
