"""The rules are data: each matches its own example in a whole log, and an invalid one is refused with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from resilience.attempts.classify import Evidence, classify
from resilience.attempts.failure import Confidence, FailureClass, Role
from resilience.attempts.rules import BUILT_IN, Rule, all_rules, parse_rules
from resilience.errors import SettingsError

RULE = """[[rule]]
class = "disk_full"
contains = ["left on device"]
pattern = 'left on device'
source = "a test"
example = "No space left on device"
"""


@pytest.mark.parametrize("rule", all_rules(), ids=lambda rule: rule.name)
def test_the_example_of_each_rule_is_classified_as_its_class(rule: Rule) -> None:
    healthy = "\n".join(f"step {step} | loss 2.31 | 812 ms" for step in range(50))
    found = classify(Evidence(exit_code=1, log=f"{healthy}\n{rule.example}\n"))
    expected = Confidence.CERTAIN if rule.decides else Confidence.GUESS if rule.broad else Confidence.LIKELY
    if rule.role is Role.ROOT:
        assert found.failure is rule.failure
        assert found.confidence is expected or rule.broad, "a narrower rule may know it as well"
        assert found.quotes[0].line == 51
    elif rule.role is Role.CASCADE and rule.failure is not FailureClass.EXCEPTION:
        assert (found.failure, found.confidence) == (rule.failure, Confidence.GUESS), "nothing else is known"
    elif rule.role is Role.CONFIRMATION and rule.failure is not FailureClass.EXCEPTION:
        assert (found.failure, found.confidence) == (rule.failure, Confidence.GUESS), "of two sources, one is missing"
    else:
        assert found.failure is FailureClass.UNKNOWN, "advice is no cause"


def test_every_rule_names_its_source_and_every_family_is_a_file() -> None:
    rules = all_rules()
    assert all(len(rule.source) > 10 for rule in rules)
    assert {rule.name.partition(":")[0] for rule in rules} == {path.name for path in BUILT_IN.glob("*.toml")}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RULE.replace("left on device'", "left (on device'"), "mine.toml:3: pattern is no regular expression"),
        (RULE.replace("disk_full", "disc_full"), "mine.toml:3: 'disc_full' is not a valid FailureClass"),
        (RULE.replace("source", "sorce"), "mine.toml:3: unknown key 'sorce'"),
        (RULE.replace("No space left on", "No room on the"), "mine.toml:3: its example does not match"),
        (RULE.replace('["left on device"]', '["Left on device"]'), "mine.toml:3: contains must be in lower case"),
        (RULE.replace('["left on device"]', '"left on device"'), "mine.toml:3: contains must be a list of texts"),
        (RULE.replace("[[rule]]", "[rule]"), "mine.toml: only"),
        (RULE.replace('"a test"', "17"), "mine.toml:3: source must be a text"),
        ('class = "x"', "mine.toml: only"),
        ("[[rule]]\nclass = ", "mine.toml: Invalid value"),
    ],
)  # fmt: skip
def test_an_invalid_rule_is_refused_with_file_and_line(text: str, said: str) -> None:
    if text.startswith("[[rule]]"):
        text = f"# mine\n\n{text}"
    with pytest.raises(SettingsError, match=said):
        parse_rules(text, "mine.toml")


def test_rules_of_a_plugin_directory_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "failure_rules"
    folder.mkdir()
    own = RULE.replace("left on device", "the coffee is cold").replace("No space ", "")
    folder.joinpath("kitchen.toml").write_text(own)
    monkeypatch.setenv("RESIL_PLUGINS", str(tmp_path))
    all_rules.cache_clear()
    try:
        assert all_rules()[0].name == "kitchen.toml:1"
        assert classify(Evidence(exit_code=1, log="the coffee is cold")).failure is FailureClass.DISK_FULL
    finally:
        monkeypatch.undo()
        all_rules.cache_clear()
