"""A payload of one's own: a Jinja2 template that becomes JSON, whatever stands in the alert. Pure."""

from __future__ import annotations

import json
from typing import Any

from resilience.alerts.alert import Alert
from resilience.alerts.channels._webhook_presets import SECRET, plain_alert
from resilience.errors import SettingsError

LIMIT = 1_000_000
"""Characters. No service takes more, and a loop in a template must not fill the memory."""


def render_payload(template: str, alert: Alert) -> Any:
    """Given a template, return the JSON value that it makes of an alert. Every `{{ value }}` comes out as JSON, quotes
    included, so no text of an alert can break out of its place.

    For instance, `{"text": {{ headline }}}`. Raise SettingsError, naming the line, for whatever is wrong with it.
    """
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment
    from markupsafe import Markup

    def as_json(value: Any) -> Any:
        # What `tojson` made is JSON already; undefined values are told of by name when they are rendered.
        if isinstance(value, Markup | jinja2.Undefined):
            return value
        return Markup(json.dumps(value))

    environment = ImmutableSandboxedEnvironment(undefined=jinja2.StrictUndefined, finalize=as_json, autoescape=False)
    # tojson escapes < > & ' for HTML, which JSON reads back as they were.
    size = 0
    pieces: list[str] = []
    try:
        for piece in environment.from_string(template).generate(plain_alert(alert) | {"secret": SECRET}):
            size += len(piece)
            if size > LIMIT:
                raise SettingsError(f"payload makes more than {LIMIT} characters")
            pieces.append(piece)
    except jinja2.TemplateSyntaxError as error:
        raise SettingsError(f"payload, line {error.lineno}: {error.message}") from None
    except jinja2.UndefinedError as error:
        hint = "it knows headline, text, state, verdict, reason, notices, host, project, id, thread, secret ..."
        raise SettingsError(f"payload: {error.message}", hint=hint) from None
    except (jinja2.TemplateError, ArithmeticError, TypeError, ValueError, LookupError, AttributeError) as error:
        raise SettingsError(f"payload: {type(error).__name__}: {error}") from None
    try:
        return json.loads("".join(pieces))
    except (ValueError, RecursionError) as error:
        raise SettingsError(
            f"payload does not make JSON: {error}",
            hint='values bring their own quotes: write {"text": {{ headline }}}, without any around the braces',
        ) from None
