"""The weekly message: its words, its picture, and that mail and Slack get both; a file that is gone stops none."""

from __future__ import annotations

import json
import struct
import zlib
from collections import Counter
from dataclasses import replace
from email import message_from_string, policy
from pathlib import Path
from typing import Any

import pytest
from pytest_httpserver import HTTPServer
from werkzeug import Request, Response

from resilience.alerts.alert import Alert
from resilience.alerts.channels import FILE_LIMIT_BYTES, read_files
from resilience.alerts.channels._email_message import compose_mail
from resilience.alerts.channels.email import CHANNEL as EMAIL
from resilience.alerts.channels.email import EmailSettings
from resilience.alerts.channels.slack import CHANNEL as SLACK
from resilience.alerts.channels.slack import SlackSettings
from resilience.report.contents import Report
from resilience.report.digest import compose, lived
from resilience.report.goodput import Category
from resilience.report.picture import BAR, GAP, MARGIN, PLOT, WIDTH, render_png
from resilience.system.ports import System
from tests.report.simulated import BEGIN, simulated

ALERT = Alert.of(id="report-gpt-1", thread="report-gpt", time=BEGIN, host="login1", project="/p", title="gpt: finished")


def pixels(png: bytes) -> list[bytes]:
    """The rows of a picture with a palette, without filters; checks the sum of each chunk."""
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    at, found = 8, {}
    while at < len(png):
        (size,) = struct.unpack(">I", png[at : at + 4])
        kind, content = png[at + 4 : at + 8], png[at + 8 : at + 8 + size]
        assert struct.unpack(">I", png[at + 8 + size : at + 12 + size]) == (zlib.crc32(kind + content),)
        found[kind] = content
        at += 12 + size
    width, height, depth, colours = struct.unpack(">IIBB", found[b"IHDR"][:10])
    assert (depth, colours) == (8, 3)
    raw = zlib.decompress(found[b"IDAT"])
    rows = [raw[number * (width + 1) : (number + 1) * (width + 1)] for number in range(height)]
    assert all(row[0] == 0 for row in rows)
    palette = [found[b"PLTE"][i : i + 3] for i in range(0, len(found[b"PLTE"]), 3)]
    return [b"".join(palette[pixel] for pixel in row[1:]) for row in rows]


def test_the_picture_has_the_shares_of_the_time_and_a_rising_line() -> None:
    report = simulated(12)
    rows = pixels(render_png(report))
    bar = rows[2 * GAP + PLOT + BAR + GAP + 2]
    counted = Counter(bar[3 * i : 3 * i + 3].hex() for i in range(MARGIN, WIDTH - MARGIN))
    assert report.time is not None
    share = report.time.ms[Category.PRODUCTIVE] / report.time.wall_ms
    assert counted["0072b2"] / (WIDTH - 2 * MARGIN) == pytest.approx(share, abs=0.005)
    blue = bytes.fromhex("0072b2")
    left, right = (
        next(y for y in range(PLOT + 2 * GAP) if rows[y][3 * x : 3 * x + 3] == blue) for x in (MARGIN + 30, WIDTH - 60)
    )
    assert right < left, "it rises"
    assert len(render_png(simulated(400))) < 60_000


def test_a_run_that_has_just_begun_has_a_picture() -> None:
    report = replace(simulated(1, is_finished=False), time=None, steps=())
    assert pixels(render_png(report))


def test_the_message_has_what_the_picture_shows_in_words() -> None:
    report = simulated(12)
    title, body = compose(report)
    text = "\n".join(body)
    assert title == f"gpt: {report.headline}"
    assert "%  productive, 11 h" in text and "to change: Keep jobs queued" in text
    assert "open: " not in text, "the incidents are over"
    still = replace(report, incidents=(replace(report.incidents[0], resolved=None),))
    assert "open: CRITICAL fs /scratch/gpt1: 98.4% of 40 TiB used (00000001)" in compose(still)[1]
    assert compose(Report(run="gpt", made_at=BEGIN, state="not started")) == ("gpt: not started", ())


def test_a_run_that_ended_before_the_week_is_not_told_again() -> None:
    report = simulated(3)
    assert lived(report, report.made_at - 3600) and not lived(report, report.made_at)
    assert report.time is not None
    open_end = replace(report, attempts=(replace(report.attempts[0], end_time=None),))
    assert lived(replace(open_end, time=replace(report.time, is_running=True)), report.made_at)
    assert not lived(open_end, report.made_at), "it seems to be lost: no mail about it each week from now on"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "report.png").write_bytes(render_png(simulated(3)))
    (tmp_path / "report.html").write_text("<!DOCTYPE html><p>ü</p>")
    return (str(tmp_path / "report.png"), str(tmp_path / "report.html"), str(tmp_path / "gone.html"))


def test_a_mail_shows_the_picture_and_has_the_page_attached(files: tuple[str, ...], tmp_path: Path) -> None:
    log = tmp_path / "sent"
    program = tmp_path / "sendmail"
    program.write_text(f"#!/bin/sh\ncat > {log}\n")
    program.chmod(0o755)
    settings = EmailSettings(to=("ada@example.org",), sendmail=(str(program),))
    mail = EMAIL.compose(replace(ALERT, files=files), settings, {})
    assert '<img src="cid:report.png"' in mail.html
    EMAIL.send(mail, settings, System())
    got = message_from_string(log.read_text(), policy=policy.default)
    kinds = {part.get_filename() or "": part for part in got.walk() if not part.is_multipart()}
    assert kinds["report.png"].get_content() == Path(files[0]).read_bytes()
    assert kinds["report.png"]["Content-ID"] == "<report.png>"
    assert kinds["report.html"].get_content_disposition() == "attachment"
    assert kinds["report.html"].get_content() == Path(files[1]).read_text()
    assert "gone.html" not in kinds
    assert "gpt: finished" in str(got.get_body(("plain",)))


def test_a_file_that_is_too_large_or_a_link_is_left_out(tmp_path: Path, files: tuple[str, ...]) -> None:
    (tmp_path / "large.html").write_bytes(b"x" * (FILE_LIMIT_BYTES + 1))
    (tmp_path / "link.png").symlink_to(files[0])
    found = read_files((str(tmp_path / "large.html"), str(tmp_path / "link.png"), *files))
    assert [name for name, _ in found] == ["report.png", "report.html"]


def test_a_mail_without_files_is_as_before() -> None:
    mail = compose_mail(ALERT, sender="", recipients=("ada@example.org",), prefix="", thread={})
    assert "<img" not in mail.html and mail.mime("a@example.org").get_content_type() == "multipart/alternative"


@pytest.fixture
def slack(httpserver: HTTPServer, tmp_path: Path) -> tuple[SlackSettings, list[tuple[str, Any]], dict[str, Any]]:
    """Settings of a bot, the calls that the API gets, and answers that differ from the usual."""
    calls: list[tuple[str, Any]] = []
    answers: dict[str, Any] = {"files.getUploadURLExternal": {"ok": True, "file_id": "F1"}}

    def answer(request: Request) -> Response:
        method = request.path.rpartition("/")[2]
        calls.append((method, request.get_json() if request.is_json else request.form.to_dict() or request.get_data()))
        assert (request.headers.get("Authorization") is None) == (method == "upload"), "the token stays with Slack"
        usual = {"ok": True, "channel": "C1", "ts": "17.1", "upload_url": httpserver.url_for("/upload")}
        return Response(json.dumps(usual | answers.get(method, {})), content_type="application/json")

    for path in ("chat.postMessage", "files.getUploadURLExternal", "files.completeUploadExternal"):
        httpserver.expect_request(f"/api/{path}").respond_with_handler(answer)
    httpserver.expect_request("/upload").respond_with_handler(answer)
    secret = tmp_path / "token"
    secret.write_text("xoxb-1")
    secret.chmod(0o600)
    return SlackSettings(token_file=str(secret), channel="C1", base_url=httpserver.url_for("/api/")), calls, answers


def test_a_bot_uploads_the_picture_and_the_page_into_the_thread(slack: Any, files: tuple[str, ...]) -> None:
    settings, calls, _ = slack
    done = SLACK.send(SLACK.compose(replace(ALERT, files=files), settings, {}), settings, System())
    assert [method for method, _ in calls] == [
        "chat.postMessage",
        *("files.getUploadURLExternal", "upload") * 2,
        "files.completeUploadExternal",
    ]
    assert calls[1][1] == {"filename": "report.png", "length": str(Path(files[0]).stat().st_size)}
    assert calls[2][1] == Path(files[0]).read_bytes()
    assert calls[5][1]["channel_id"] == "C1" and calls[5][1]["thread_ts"] == "17.1"
    assert json.loads(calls[5][1]["files"]) == [
        {"id": "F1", "title": "report.png"},
        {"id": "F1", "title": "report.html"},
    ]
    assert done["answer"] == "Slack accepted the message, with 2 files (C1 17.1)"


@pytest.mark.parametrize(
    "answer",
    [{"ok": False, "error": "missing_scope"}, {"upload_url": "http://files.example.org/x"}, {"upload_url": None}],
)
def test_files_that_slack_refuses_do_not_stop_the_message(slack: Any, files: tuple[str, ...], answer: Any) -> None:
    settings, calls, answers = slack
    answers["files.getUploadURLExternal"] |= answer
    done = SLACK.send(SLACK.compose(replace(ALERT, files=files), settings, {}), settings, System())
    assert done["ts"] == "17.1" and "but not its files" in done["answer"] and "files:write" in done["answer"]
    assert [method for method, _ in calls] == ["chat.postMessage", "files.getUploadURLExternal"]
