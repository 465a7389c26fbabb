"""A switch reaches no further than its thrower said."""

from __future__ import annotations

from resilience.model.switch import OwnerPolicy, Scope, Switch


def test_a_bare_kill_switch_leaves_the_queued_siblings_alone() -> None:
    assert Switch("kill", "anna", 0.0).scope is Scope.JOB


def test_the_words_in_files_and_settings_stay_as_they_are() -> None:
    assert [scope.value for scope in Scope] == ["job", "all"]
    assert [policy.value for policy in OwnerPolicy] == ["owner", "group", "any"]
