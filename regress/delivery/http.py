"""One careful way to speak HTTP for every sink: bounded in time and size, and plain about what the server said.

Uses requests, loaded only when something is sent.
"""

from __future__ import annotations

import os
import re
import threading
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from regress.delivery import RefusedError, UnreachableError, WithheldError
from regress.errors import PublishError
from regress.options import Form, option

_MOST_ANSWER_BYTES = 64 * 1024
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """How a server is reached. Secrets are named here and read from the environment when something is sent."""

    timeout: float = option(10.0, help="whole request, from connecting to the last byte of the answer",
                            form=Form.DURATION, above=0)
    ca_file: str | None = option(None, help="certificates to trust instead of the system's")
    bearer_token_env: str | None = option(None, help="environment variable that holds a bearer token")
    user_env: str | None = option(None, help="environment variable that holds the user for basic authentication")
    password_env: str | None = option(None, help="environment variable that holds the password")


@dataclass(frozen=True, slots=True)
class Answer:
    """A server's answer, its body cut at 64 KiB."""

    status: int
    content_type: str
    body: bytes

    @property
    def text(self) -> str:
        """The body on one line, cut for a message."""
        plain = " ".join(self.body.decode("utf-8", "replace").split())
        return plain if len(plain) <= _SHOWN_CHARACTERS else plain[:_SHOWN_CHARACTERS] + "…"


def shown(url: str) -> str:
    """The URL without user, password, query and fragment, any of which may hold a secret."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # no URL at all, and destinations are named before anything is sent
        return re.sub(r"//.*@", "//", re.split(r"[?#]", url)[0])
    return urlunsplit((parts.scheme, f"{host}:{port}" if port else host, parts.path, "", ""))


def send(method: str, url: str, body: bytes | None, headers: dict[str, str], options: HttpOptions) -> Answer:
    """One request. Returns a 2xx answer that is no web page; everything else is an error.

    RefusedError: any other status but those below, a web page, or a URL that is none. UnreachableError: no answer, a
    cut one, 408, 425, 429 or 5xx; it carries how long the server asked to wait. WithheldError: a secret that is not
    set, or anything else that is wrong here and not there.
    """
    where = f"{method} {shown(url)}"
    _check_url(url, where)
    headers = headers | _authorisation(options, where)
    basic = _basic(options, where)
    box: list[tuple[Answer, str] | Exception] = []

    def exchange() -> None:
        try:
            box.append(_exchange(method, url, body, headers=headers, basic=basic, options=options))
        except Exception as error:
            box.append(error)

    # requests bounds each wait for a byte, not their sum: a server that sends one byte a second would hold the gate.
    # A thread can be left behind.
    worker = threading.Thread(target=exchange, name=f"comm-regress {where}", daemon=True)
    worker.start()
    worker.join(options.timeout)
    found = box[0] if box else TimeoutError()
    if isinstance(found, Exception):
        raise _failure(found, where, options) from found
    _judge(found[0], where, found[1])
    return found[0]


def _check_url(url: str, where: str) -> None:
    """Before anything is sent, so that what the same library says later is about a proxy of the environment."""
    import requests

    try:
        if urlsplit(url).scheme.lower() not in ("http", "https"):
            raise ValueError(f"its scheme is {urlsplit(url).scheme!r}")
        requests.Request("GET", url).prepare()
    except ValueError as error:
        raise RefusedError(f"the URL cannot be used: {' '.join(str(error).split())[:_SHOWN_CHARACTERS]}", where=where,
                           accepted="http://... or https://...") from error
    if urlsplit(url).password:
        raise WithheldError("the URL holds a password", where=where, accepted="user_env and password_env",
                            next_step="a thresholds file is no place for a secret")


def _exchange(method: str, url: str, body: bytes | None, *, headers: dict[str, str], basic: tuple[str, str] | None,
              options: HttpOptions) -> tuple[Answer, str]:
    """The answer, its body cut at a bound, and what it says of when to come back."""
    import requests

    # Given an `auth`, requests does not put a login from ~/.netrc in the place of our token.
    with requests.request(method, url, data=body, headers=headers, auth=basic or (lambda prepared: prepared),
                          timeout=options.timeout, allow_redirects=False, stream=True,
                          verify=options.ca_file or True) as response:
        content = b""
        for piece in response.iter_content(4096):
            content += piece
            if len(content) >= _MOST_ANSWER_BYTES:
                break
        return (Answer(response.status_code, response.headers.get("Content-Type", ""), content[:_MOST_ANSWER_BYTES]),
                response.headers.get("Retry-After", ""))


def _judge(answer: Answer, where: str, retry_after: str) -> None:
    said = f"{answer.status} {answer.text}".rstrip()
    if answer.status in (408, 425, 429) or answer.status >= 500:
        error = UnreachableError(f"the server said {said}", where=where, next_step="it is tried again later")
        error.retry_after_seconds = float(retry_after) if re.fullmatch(r"\d{1,6}", retry_after) else None
        raise error
    if 300 <= answer.status < 400:
        raise RefusedError(f"the server redirects ({answer.status})", where=where,
                           next_step="give the final URL: measurements do not follow redirects")
    if answer.status >= 400:
        raise RefusedError(f"the server said {said}", where=where)
    if "html" in answer.content_type.lower():
        raise RefusedError(f"a web page answered instead of the server: {answer.text[:80]}", where=where,
                           next_step="a proxy or a login page stands between; check the URL and the token")


def secret(variable: str, where: str) -> str:
    """The value of an environment variable that holds a secret; WithheldError when it is not set or not one line."""
    value = os.environ.get(variable, "")
    if not value or not value.isprintable():
        raise _unusable(variable, "not one line of text" if value else "not set", where)
    return value


def header_secret(variable: str, where: str) -> str:
    """A secret that goes into a header as it is, where only Latin-1 can stand."""
    value = secret(variable, where)
    if any(ord(letter) > 0xFF for letter in value):
        raise _unusable(variable, "not in Latin-1, as a header must be", where)
    return value


def _unusable(variable: str, why: str, where: str) -> WithheldError:
    return WithheldError(f"environment variable {variable} is {why}", where=where,
                         next_step=f"export {variable} with the secret, then `regress publish sinks`")


def _authorisation(options: HttpOptions, where: str) -> dict[str, str]:
    if options.bearer_token_env is None:
        return {}
    return {"Authorization": f"Bearer {header_secret(options.bearer_token_env, where)}"}


def _basic(options: HttpOptions, where: str) -> tuple[str, str] | None:
    if options.user_env is None:
        return None
    return (header_secret(options.user_env, where),
            header_secret(options.password_env, where) if options.password_env else "")


def _failure(error: Exception, where: str, options: HttpOptions) -> PublishError:
    """What an exchange that gave no answer means; an error of another kind is a fault of ours and is raised."""
    import requests

    # urllib3 wraps the cause in a text that repeats the whole URL, query included.
    cause = getattr(error.args[0], "reason", error) if error.args else error
    text = " ".join(str(cause).split())[:_SHOWN_CHARACTERS]
    kinds = requests.exceptions
    if isinstance(error, kinds.InvalidURL | kinds.InvalidSchema):  # its text may hold the proxy's password
        return WithheldError("the proxy that the environment names cannot be used", where=where,
                             next_step="check HTTP_PROXY, HTTPS_PROXY and ALL_PROXY; SOCKS needs the package PySocks")
    if isinstance(error, kinds.SSLError):
        return UnreachableError(f"no trusted TLS connection: {text}", where=where,
                                next_step="for a private authority, name its certificates with ca_file")
    if isinstance(error, TimeoutError | kinds.Timeout):
        return UnreachableError(f"no complete answer within {options.timeout:g} s", where=where)
    if isinstance(error, kinds.RequestException):
        return UnreachableError(f"no answer: {text}", where=where)
    if isinstance(error, OSError):  # requests says so when the certificate file is not there
        return WithheldError(f"cannot be sent: {text}", where=where, next_step="check ca_file")
    raise error
