"""`resil cron tick` has a short way, without Typer: both ways do the same and say the same."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.cli import entry


@pytest.mark.parametrize(
    ("words", "options"),
    [
        (("cron", "tick"), {}),
        (("cron", "tick", "--driver", "crontab"), {"--driver": "crontab"}),
        (("cron", "tick", "--config=/p/resil.toml", "--driver=x"), {"--config": "/p/resil.toml", "--driver": "x"}),
        (("cron", "tick", "--no-wait"), None),
        (("cron", "tick", "--json"), None),
        (("cron", "tick", "--driver"), None),
        (("cron", "tick", "--driver", "--json"), None),
        (("cron", "tick", "now"), None),
        (("cron", "run"), None),
        (("cron",), None),
        ((), None),
    ],
)
def test_only_what_needs_no_parsing_takes_the_short_way(words: tuple[str, ...], options: dict[str, str] | None) -> None:
    assert entry._plain_tick(words) == options


def test_both_ways_leave_a_sign_of_life_and_say_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "resil.toml").write_text(f'[run]\nstate_dir = "{tmp_path}/state"\n')
    (tmp_path / "cron").mkdir(mode=0o700)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    said = []
    for is_short in (True, False):
        with monkeypatch.context() as patched:
            if not is_short:
                patched.setattr(entry, "_plain_tick", lambda _: None)
            assert entry.run(("cron", "tick", "--driver", "crontab")) == 0
        said.append(capfd.readouterr())
        beat = tmp_path / "state" / ".cron" / "heartbeat"
        assert '"driver": "crontab"' in beat.read_text()
        beat.unlink()
    assert said[0] == said[1]


def test_a_settings_file_that_is_not_there_is_told_both_ways(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ("cron", "tick", "--config", "/nowhere/resil.toml")
    code = entry.run(words)
    short = capfd.readouterr()
    monkeypatch.setattr(entry, "_plain_tick", lambda _: None)
    assert (entry.run(words), capfd.readouterr()) == (code, short)
    assert code == 2 and "/nowhere/resil.toml" in short.err
