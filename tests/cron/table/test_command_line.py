"""A command runs as it stands, by a shell only where one was asked for."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resilience.cron.table.command_line import CommandError, parse_command


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("backup", ("backup",)),
        ("  ./backup --to  '/data/my disk'  ", ("./backup", "--to", "/data/my disk")),
        ("""printf "%s" x""".replace("%", "\\%"), ("printf", "%s", "x")),
        (r"date +\%F", ("date", "+%F")),
        ("find . -name '*.log' -exec rm {} +", ("find", ".", "-name", "*.log", "-exec", "rm", "{}", "+")),
        ("echo 'a | b && c; $HOME `x`'", ("echo", "a | b && c; $HOME `x`")),
        (r"echo a\;b \$HOME \#x", ("echo", "a;b", "$HOME", "#x")),
        ("echo a#b x~y a=b", ("echo", "a#b", "x~y", "a=b")),
        ('echo "a;b|c*"', ("echo", "a;b|c*")),
        ("sbatch x.slurm", ("sbatch", "x.slurm")),
        ("root", ("root",)),
        ("echo \u00e9\u20ac", ("echo", "\u00e9\u20ac")),
    ],
)
def test_without_a_shell_a_command_is_words(text: str, words: tuple[str, ...]) -> None:
    assert parse_command(text) == words


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a | b", "`|`"),
        ("a && b", "`&&`"),
        ("a &", "`&`"),
        ("a; b", "`;`"),
        ("a > log", "`>`"),
        ("a 2>&1", "`>`"),
        ("a < in", "`<`"),
        ("a $HOME", "`$`"),
        ('a "$HOME/x"', "the `$` in '$HOME"),
        ('a "`date`"', "the ``` in"),
        ("a `date`", "```"),
        ("rm *.log", "`*`"),
        ("rm log?", "`?`"),
        ("rm log[0-9]", "`[`"),
        ("ls ~/x", "a `~` for the home directory"),
        ("cp a{,.bak}", "`{...}`"),
        ("echo {1..3}", "`{...}`"),
        ("(a)", "`(`"),
        ("a # comment", "a comment behind the command"),
    ],
)
def test_shell_syntax_is_rejected_with_the_fix(text: str, found: str) -> None:
    with pytest.raises(CommandError) as refused:
        parse_command(text)
    assert found in refused.value.message
    assert "SHELL=/bin/sh" in refused.value.hint
    assert parse_command(text, shell="/bin/sh") == ("/bin/sh", "-c", text)


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        ("", "the command is missing", "five fields"),
        ("''", "the command is missing", "five fields"),
        ("echo 'x", "unbalanced quotes in the command: no closing quotation", "close the quote"),
        ("echo x\\", "no escaped character", "close the quote"),
        ("A=b backup", "setting A for one command needs a shell", "A=b on a line of its own"),
        ("cd /x", "'cd' needs a shell", "SHELL=/bin/sh"),
        ("module load cuda", "'module' needs a shell", "SHELL=/bin/sh"),
        ("jobs/night.slurm", "is a batch script, and would run here", "sbatch jobs/night.slurm"),
        ("mail -s x%body", "unescaped `%`", r"`\%`"),
        ("* backup", "unexpected sixth field '*'", "cron has no seconds"),
        ("0 backup", "unexpected sixth field '0'", "cron has no seconds"),
        ("root /usr/bin/backup", "begins with 'root', like the user column of a system crontab", "remove 'root'"),
    ],
)
@pytest.mark.parametrize("shell", ["", "/bin/sh"])
def test_an_invalid_command_is_an_error(text: str, reason: str, hint: str, shell: str) -> None:
    if shell and not any(word in reason for word in ("`%`", "sixth", "column", "system")):
        return  # a shell says so itself, or can do it
    with pytest.raises(CommandError) as refused:
        parse_command(text, shell=shell)
    assert reason in refused.value.message
    assert hint in refused.value.hint


def test_a_user_of_this_machine_is_no_command() -> None:
    with pytest.raises(CommandError, match="like the user column"):
        parse_command("ada ./backup", users={"root", "ada"})
    assert parse_command("ada ./backup") == ("ada", "./backup")


@settings(max_examples=300, derandomize=True, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab \t'\"\\|&;<>()$`*?[~#{},=%\u00e9-0/."), max_size=30))
def test_any_text_is_a_command_or_an_error(text: str) -> None:
    try:
        words = parse_command(text)
    except CommandError as error:
        assert error.message
        assert error.hint
    else:
        assert words[0]
        # Every character of a word stood in the text: nothing was expanded.
        assert all(set(word) <= set(text) for word in words)
