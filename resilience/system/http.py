"""The door to web servers: one request, one deadline, no redirects, certificates checked, no secret in errors."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from resilience.errors import DeliveryError, SettingsError
from resilience.messages import cut
from resilience.system.redaction import redact
from resilience.system.time_limit import CONNECT_S, TimeLimit

if TYPE_CHECKING:  # requests costs 100 ms, and only those pay who send something
    from requests import Response, Session

READ_S = 10.0
"""How long a server may be silent."""

BODY_LIMIT_BYTES = 64 * 1024
"""So much of an answer is read: it is only looked at to say what went wrong."""

RETRY_AFTER_LIMIT_S = 300.0
"""A server that asks for more is asked again after this: an alert that waits for a day is lost."""

_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")
_TRANSIENT = {408, 425, 429}


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a server.

    Attributes:
        status: HTTP's number.
        headers: names in lower case.
        body: at most BODY_LIMIT_BYTES, decoded; what is not UTF-8 is replaced.
    """

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def retry_after_s(self) -> float | None:
        """How long it asks to wait: `Retry-After` in seconds or as a date, capped. None when it does not say."""
        return retry_after_s(self.headers.get("retry-after", ""), self.headers.get("date", ""))


def is_loopback(host: str) -> bool:
    """Return whether a name or address can only mean this machine."""
    return _LOOPBACK.fullmatch(host.strip("[]").lower()) is not None


def check_url(url: str, what: str, *, allow_http: bool = False) -> None:
    """Raise SettingsError unless it is an https address of a host. Plain http is for loopback, or when it is allowed.

    The error names the host at most: the rest may be a secret.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port  # reading the port checks it
    except ValueError:
        host, parts, port = "", urlsplit(""), None
    if parts.scheme not in ("https", "http") or not host or port == 0 or not url.isprintable() or " " in url:
        raise SettingsError(f"{what} is no web address", hint="it begins with https:// and has no blanks")
    if parts.scheme == "http" and not allow_http and not is_loopback(host):
        raise SettingsError(
            f"{what} is plain http to {host}: everybody on the way could read it",
            hint="use https, or say allow_http = true if that network is your own",
        )


def retry_after_s(value: str, date: str = "") -> float | None:
    """Given the header, return seconds from 0 to RETRY_AFTER_LIMIT_S, None if it says nothing that can be understood.

    For instance, `"120"` gives 120.0 (RFC 9110, 10.2.3). A date is measured against the server's own `Date`.
    """
    value = value.strip()
    if re.fullmatch(r"\d{1,18}(\.\d+)?", value):
        return min(float(value), RETRY_AFTER_LIMIT_S)
    if value and date:
        from email.utils import parsedate_to_datetime

        try:
            wait = (parsedate_to_datetime(value) - parsedate_to_datetime(date)).total_seconds()
        except (ValueError, TypeError, IndexError, OverflowError):
            return None
        return min(max(0.0, wait), RETRY_AFTER_LIMIT_S)
    return None


def request(
    url: str,
    body: bytes,
    *,
    environ: Mapping[str, str],
    timeout_s: float,
    headers: Mapping[str, str] | None = None,
    method: str = "POST",
    ca_file: str = "",
    secrets: Sequence[str] = (),
) -> Answer:
    """Send one request and return the answer, whatever its status.

    The proxy and the certificate authorities are those of `environ`. Raise DeliveryError, without any part of the
    address but its host, if no answer came within `timeout_s`; SettingsError if `ca_file` cannot be read.
    """
    import requests

    host = urlsplit(url).hostname or "?"
    authorities = str(readable_ca_file(ca_file)) if ca_file else ""
    failure: DeliveryError
    with TimeLimit(timeout_s) as limit, requests.Session() as session:
        session.trust_env = False  # it would add passwords from ~/.netrc
        _connect_through(session, limit)
        try:
            response = session.request(
                method,
                url,
                data=body,
                headers=dict(headers or {}),
                timeout=(CONNECT_S, min(READ_S, timeout_s + 1)),
                allow_redirects=False,
                stream=True,
                verify=authorities or environ.get("REQUESTS_CA_BUNDLE") or environ.get("SSL_CERT_FILE") or True,
                proxies=proxies_for(url, environ),
            )
            with response:
                if limit.is_over:  # cut off at the deadline, a head without an end looks like a whole one
                    raise TimeoutError
                return _answer(response)
        except Exception as error:
            failure = _explain(error, host, limit, [url, *secrets])
    # Raised out here, so that it carries no other exception along: those have the address in their texts.
    raise failure


def readable_ca_file(ca_file: str) -> Path:
    """The file of certificate authorities that settings name. Raise SettingsError if it cannot be read."""
    path = Path(ca_file).expanduser()
    try:
        path.open("rb").close()
    except OSError as error:
        raise SettingsError(f"ca_file = {ca_file!r} cannot be read: {error.strerror}") from None
    return path


def refusal(answer: Answer, what: str, secrets: Sequence[str] = ()) -> DeliveryError | None:
    """The error that an answer amounts to, None for a good one. `what` names the server."""
    status = answer.status
    if 200 <= status < 300:
        return None
    said = quoted(answer.body, secrets)
    message = f"{what} answered {status}{': ' + said if said else ''}"
    transient = status in _TRANSIENT or status >= 500
    hint = ""
    if 300 <= status < 400:
        hint = "redirects are not followed: write the address that it leads to"
    elif status in (401, 403):
        hint = "is the secret right, and still valid?"
    elif status in (404, 410):
        hint = "is the address right? It may have been revoked"
    elif status == 413:
        hint = "the message is too large for this server"
    return DeliveryError(message, hint=hint, transient=transient, retry_after_s=answer.retry_after_s)


def quoted(body: str, secrets: Sequence[str] = ()) -> str:
    """The body of an answer without secrets, cut to one line. Redacted first: half of a secret is a secret too."""
    shown = redact(body[:BODY_LIMIT_BYTES], secrets)[:2000]
    line = " ".join("".join(c if c.isprintable() else " " for c in shown).split())
    return cut(line, 200)


def proxies_for(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The proxy for an address, by the usual variables: `https_proxy`, `all_proxy`, `no_proxy`; lower case wins.

    As in curl(1), `HTTP_PROXY` in capitals is not asked: a web server's CGI programs get it from strangers.
    """
    from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined]

    found = {name[:-6].lower(): value for name, value in environ.items() if name.endswith("_PROXY")}
    found.pop("http", None)
    found |= {name[:-6]: value for name, value in environ.items() if name.endswith("_proxy")}
    parts = urlsplit(url)
    if is_loopback(parts.hostname or "") or proxy_bypass_environment(parts.netloc.rpartition("@")[2], found):
        return {}
    proxy = found.get(parts.scheme) or found.get("all")
    return {parts.scheme: proxy if "://" in proxy else f"http://{proxy}"} if proxy else {}


def _connect_through(session: Session, limit: TimeLimit) -> None:
    """Let all connections of a session be made by the time limit, those to a proxy as well."""
    from requests.adapters import HTTPAdapter
    from urllib3.connection import HTTPConnection, HTTPSConnection
    from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

    class Plain(HTTPConnection):
        def _new_conn(self) -> Any:
            return limit.connect(self._dns_host, self.port)

    class Tls(HTTPSConnection):
        def _new_conn(self) -> Any:
            return limit.connect(self._dns_host, self.port)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = Plain

    class TlsPool(HTTPSConnectionPool):
        ConnectionCls = Tls

    pools = {"http": PlainPool, "https": TlsPool}

    class Adapter(HTTPAdapter):
        def init_poolmanager(self, *arguments: Any, **keywords: Any) -> None:
            super().init_poolmanager(*arguments, **keywords)
            self.poolmanager.pool_classes_by_scheme = pools

        def proxy_manager_for(self, *arguments: Any, **keywords: Any) -> Any:
            manager = super().proxy_manager_for(*arguments, **keywords)
            if not arguments[0].lower().startswith("socks"):
                manager.pool_classes_by_scheme = pools
            return manager

    adapter = Adapter()
    session.mount("https://", adapter)
    session.mount("http://", adapter)


def _answer(response: Response) -> Answer:
    body = bytearray()
    # A body that never ends, or ends early, or is packed badly, changes nothing: the status has been said.
    try:
        for chunk in response.iter_content(8192):
            body += chunk
            if len(body) >= BODY_LIMIT_BYTES:
                break
    except Exception as error:
        body += f" (and then: {type(error).__name__})".encode()
    headers = {name.lower(): value for name, value in response.headers.items()}
    return Answer(response.status_code, headers, bytes(body[:BODY_LIMIT_BYTES]).decode("utf-8", "replace"))


def _explain(error: Exception, host: str, limit: TimeLimit, secrets: Sequence[str]) -> DeliveryError:
    """One sentence for what requests and urllib3 wrap three times over."""
    if limit.is_over:
        return DeliveryError(f"{host} did not answer within {round(limit.seconds, 1):g} s")
    kinds, innermost = _causes(error)
    said = quoted(str(innermost), secrets)
    if "SSLError" in kinds or "SSLCertVerificationError" in kinds:
        hint = "ca_file names the authorities to trust; checking cannot be switched off"
        return DeliveryError(f"the certificate of {host} was not accepted: {said}", hint=hint)
    if "gaierror" in kinds or "NameResolutionError" in kinds:
        return DeliveryError(f"the name {host} is not known here", hint="does this node reach the network?")
    if "ProxyError" in kinds:
        return DeliveryError(f"the proxy did not let us through to {host}: {said}")
    if "ConnectionRefusedError" in kinds:
        return DeliveryError(f"nothing listens at {host}: connection refused")
    if "TimeoutError" in kinds or "ReadTimeout" in kinds or "ConnectTimeout" in kinds:
        return DeliveryError(f"{host} did not answer in time")
    if kinds & {"InvalidURL", "InvalidSchema", "MissingSchema", "LocationParseError", "InvalidHeader", "UnicodeError"}:
        return DeliveryError(f"the request to {host} cannot be written down: {said}", transient=False)
    if isinstance(innermost, OSError) and innermost.errno is None and "CA" in said and "path" in said:
        return DeliveryError(
            f"the file of certificate authorities cannot be used: {said}", hint="see REQUESTS_CA_BUNDLE, SSL_CERT_FILE"
        )
    return DeliveryError(f"the connection to {host} failed: {said or type(innermost).__name__}")


def _causes(error: BaseException) -> tuple[set[str], BaseException]:
    """The names of all exceptions that one was made of, with their base classes, and the innermost."""
    kinds: set[str] = set()
    current: BaseException | None = error
    innermost, seen = error, set[int]()
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        innermost = current
        kinds |= {kind.__name__ for kind in type(current).__mro__}
        reason = getattr(current, "reason", None)
        inner = reason if isinstance(reason, BaseException) else None
        inner = inner or next((part for part in current.args if isinstance(part, BaseException)), None)
        current = inner or current.__cause__ or current.__context__
    return kinds, innermost
