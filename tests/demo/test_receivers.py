"""The demo's mail server and its Slack take what real clients send."""

from __future__ import annotations

import json
import smtplib
import urllib.request
from email.message import EmailMessage

from resilience.demo.receivers import receivers


def test_a_mail_of_a_real_client_is_kept_with_its_subject() -> None:
    message = EmailMessage()
    message["Subject"], message["From"], message["To"] = "voll: 98 % – jetzt", "a@b.example", "c@d.example"
    message.set_content(".a line that begins with a dot\n")
    with receivers() as inbox:
        with smtplib.SMTP("127.0.0.1", inbox.smtp_port, timeout=5) as client:
            assert client.send_message(message) == {}
        assert inbox.subjects == ["voll: 98 % – jetzt"]


def test_a_webhook_is_kept_with_its_text() -> None:
    with receivers() as inbox:
        request = urllib.request.Request(inbox.slack_url, json.dumps({"text": "full"}).encode())
        with urllib.request.urlopen(request, timeout=5) as answer:
            assert answer.read() == b"ok"
        assert inbox.texts == ["full"]
