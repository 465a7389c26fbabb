"""HTTP requests with one deadline, verified certificates, no redirects, and no secrets in errors."""

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

if TYPE_CHECKING:  # requests takes 100 ms to import
    from requests import Response, Session

READ_S = 10.0
"""Timeout between two reads."""

BODY_LIMIT_BYTES = 64 * 1024
"""Maximum size of a response body, which is only used in error messages."""

RETRY_AFTER_LIMIT_S = 300.0
"""Upper limit of Retry-After: an alert that waits for a day is lost."""

_LOOPBACK = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")
_TRANSIENT = {408, 425, 429}


@dataclass(frozen=True, slots=True)
class Answer:
    """The response of a server.

    Attributes:
        status: HTTP status code.
        headers: names in lower case.
        body: at most BODY_LIMIT_BYTES, decoded; invalid UTF-8 is replaced.
    """

    status: int
    headers: Mapping[str, str]
    body: str

    @property
    def retry_after_s(self) -> float | None:
        """Return the delay of the header `Retry-After` (seconds or a date), capped; None without the header."""
        return retry_after_s(self.headers.get("retry-after", ""), self.headers.get("date", ""))


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is the loopback interface."""
    return _LOOPBACK.fullmatch(host.strip("[]").lower()) is not None


def check_url(url: str, what: str, *, allow_http: bool = False, key: str = "allow_http") -> None:
    """Raise SettingsError unless `url` is an https address. Plain http requires `allow_http` or a loopback host.

    The error contains at most the host, because the rest may be a secret.
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port  # reading the port checks it
    except ValueError:
        host, parts, port = "", urlsplit(""), None
    if parts.scheme not in ("https", "http") or not host or port == 0 or not url.isprintable() or " " in url:
        raise SettingsError(f"{what} is not a web address", hint="an address starts with https://, without blanks")
    if parts.scheme == "http" and not allow_http and not is_loopback(host):
        raise SettingsError(
            f"{what} is plain http to {host}: the message would not be encrypted",
            hint=f"use https, or set {key} = true for a trusted network",
        )


def retry_after_s(value: str, date: str = "") -> float | None:
    """Return the value of Retry-After in seconds, from 0 to RETRY_AFTER_LIMIT_S; None if invalid.

    For instance, `"120"` gives 120.0 (RFC 9110, 10.2.3). A date is relative to the server's own `Date`.
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
    """Send a request and return the response, whatever its status.

    The proxy and the certificate authorities are those of `environ`. Raise DeliveryError if there is no response within
    `timeout_s`, with no part of the address except the host; SettingsError if `ca_file` cannot be read.
    """
    import requests

    host = urlsplit(url).hostname or "?"
    authorities = str(readable_ca_file(ca_file)) if ca_file else ""
    failure: DeliveryError
    with TimeLimit(timeout_s) as limit, requests.Session() as session:
        session.trust_env = False  # would add passwords from ~/.netrc
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
                if limit.is_over:  # a head truncated at the deadline looks complete
                    raise TimeoutError
                return _answer(response)
        except Exception as error:
            failure = _explain(error, host, limit, [url, *secrets])
    # Raised outside of `except`, because the context would contain exceptions with the address in their texts.
    raise failure


def readable_ca_file(ca_file: str) -> Path:
    """Return the path of the file of certificate authorities. Raise SettingsError if the file cannot be read."""
    path = Path(ca_file).expanduser()
    try:
        path.open("rb").close()
    except OSError as error:
        raise SettingsError(f"ca_file = {ca_file!r} cannot be read: {error.strerror}") from None
    return path


def refusal(answer: Answer, what: str, secrets: Sequence[str] = ()) -> DeliveryError | None:
    """Return the error for a response, or None for a success. `what` names the server."""
    status = answer.status
    if 200 <= status < 300:
        return None
    said = quoted(answer.body, secrets)
    message = f"{what} answered {status}{': ' + said if said else ''}"
    transient = status in _TRANSIENT or status >= 500
    hint = ""
    if 300 <= status < 400:
        hint = "redirects are not followed: set the target address"
    elif status in (401, 403):
        hint = "is the secret correct, and still valid?"
    elif status in (404, 410):
        hint = "is the address correct? It may have been revoked"
    elif status == 413:
        hint = "the message is too large for this server"
    return DeliveryError(message, hint=hint, transient=transient, retry_after_s=answer.retry_after_s)


def quoted(body: str, secrets: Sequence[str] = ()) -> str:
    """Return a response body as one short line, redacted before truncation, which could split a secret."""
    shown = redact(body[:BODY_LIMIT_BYTES], secrets)[:2000]
    line = " ".join("".join(c if c.isprintable() else " " for c in shown).split())
    return cut(line, 200)


def proxies_for(url: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the proxy for an address from `https_proxy`, `all_proxy` and `no_proxy`; lower case takes precedence.

    As in curl(1), `HTTP_PROXY` in capitals is ignored: CGI programs receive it from unauthenticated clients.
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
    """Apply the time limit to all connections of a session, including those to a proxy."""
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
    # An endless, truncated or badly encoded body does not matter, because the status is known.
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
    """Return the innermost cause of an exception of requests and urllib3 as one sentence."""
    if limit.is_over:
        return DeliveryError(f"{host} did not answer within {round(limit.seconds, 1):g} s")
    kinds, innermost = _causes(error)
    said = quoted(str(innermost), secrets)
    if "SSLError" in kinds or "SSLCertVerificationError" in kinds:
        hint = "set ca_file to the authorities to trust; verification cannot be disabled"
        return DeliveryError(f"the certificate of {host} was rejected: {said}", hint=hint)
    if "gaierror" in kinds or "NameResolutionError" in kinds:
        return DeliveryError(f"the host name {host} cannot be resolved", hint="does this node have network access?")
    if "ProxyError" in kinds:
        return DeliveryError(f"the proxy refused the connection to {host}: {said}")
    if "ConnectionRefusedError" in kinds:
        return DeliveryError(f"nothing listens at {host}: connection refused")
    if "TimeoutError" in kinds or "ReadTimeout" in kinds or "ConnectTimeout" in kinds:
        return DeliveryError(f"{host} did not answer in time")
    if kinds & {"InvalidURL", "InvalidSchema", "MissingSchema", "LocationParseError", "InvalidHeader", "UnicodeError"}:
        return DeliveryError(f"the request to {host} is invalid: {said}", transient=False)
    if isinstance(innermost, OSError) and innermost.errno is None and "CA" in said and "path" in said:
        return DeliveryError(
            f"the file of certificate authorities cannot be used: {said}", hint="see REQUESTS_CA_BUNDLE, SSL_CERT_FILE"
        )
    return DeliveryError(f"the connection to {host} failed: {said or type(innermost).__name__}")


def _causes(error: BaseException) -> tuple[set[str], BaseException]:
    """Return the class names of an exception's causes, with their base classes, and the innermost cause."""
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
