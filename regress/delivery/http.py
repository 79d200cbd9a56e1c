"""One careful way to speak HTTP for every sink: bounded in time and size, and plain about what the server said.

Uses requests, loaded only when something is sent.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

from regress.delivery import RefusedError, UnreachableError
from regress.errors import PublishError
from regress.options import Form, option

if TYPE_CHECKING:
    import requests

_MOST_ANSWER_BYTES = 64 * 1024
_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """How a server is reached. Secrets are named here and read from the environment when something is sent."""

    timeout: float = option(10.0, help="whole request, from connecting to the last byte of the answer",
                            form=Form.DURATION)
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
    parts = urlsplit(url)
    host = parts.hostname or ""
    return urlunsplit((parts.scheme, f"{host}:{parts.port}" if parts.port else host, parts.path, "", ""))


def send(method: str, url: str, body: bytes | None, headers: dict[str, str], options: HttpOptions) -> Answer:
    """One request. Returns a 2xx answer that is no web page; everything else is an error.

    RefusedError: any other status but those below, a web page, or a secret that is not set. UnreachableError: no
    answer, a cut one, 408, 425, 429 or 5xx; it carries how long the server asked to wait.
    """
    import requests

    where = f"{method} {shown(url)}"
    if urlsplit(url).password:
        raise RefusedError("the URL holds a password", where=where, accepted="user_env and password_env",
                           next_step="a thresholds file is no place for a secret")
    deadline = time.monotonic() + options.timeout
    try:
        with requests.request(method, url, data=body, headers=headers | _authorisation(options, where),
                              auth=_basic(options, where), timeout=options.timeout, allow_redirects=False,
                              stream=True, verify=options.ca_file or True) as response:
            answer = Answer(response.status_code, response.headers.get("Content-Type", ""),
                            _body(response, deadline, options.timeout))
            retry_after = response.headers.get("Retry-After", "")
    except (requests.exceptions.InvalidURL, requests.exceptions.MissingSchema, requests.exceptions.InvalidSchema,
            requests.exceptions.InvalidHeader, UnicodeError) as error:
        raise RefusedError(f"the URL cannot be used: {error}", where=where, accepted="http://... or https://...") \
            from error
    except OSError as error:  # requests' own errors among them, and a certificate file that is not there
        raise _unreachable(error, where, options) from error
    _judge(answer, where, retry_after)
    return answer


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


def _body(response: requests.Response, deadline: float, timeout: float) -> bytes:
    """The answer's body up to a bound; OSError when it does not end in time, or is shorter than announced."""
    content = b""
    for piece in response.iter_content(4096):
        content += piece
        if time.monotonic() > deadline:
            raise TimeoutError(f"no complete answer within {timeout:g} s")
        if len(content) > _MOST_ANSWER_BYTES:
            break
    return content[:_MOST_ANSWER_BYTES]


def secret(variable: str, where: str) -> str:
    """The value of an environment variable that holds a secret; RefusedError when it is not set or not one line."""
    value = os.environ.get(variable, "")
    if not value or not value.isprintable():
        raise RefusedError(f"environment variable {variable} is {'not one line of text' if value else 'not set'}",
                           where=where, next_step=f"export {variable} with the secret")
    return value


def _authorisation(options: HttpOptions, where: str) -> dict[str, str]:
    if options.bearer_token_env is None:
        return {}
    return {"Authorization": f"Bearer {secret(options.bearer_token_env, where)}"}


def _basic(options: HttpOptions, where: str) -> tuple[str, str] | None:
    if options.user_env is None:
        return None
    return secret(options.user_env, where), secret(options.password_env, where) if options.password_env else ""


def _unreachable(error: OSError, where: str, options: HttpOptions) -> PublishError:
    import requests

    # urllib3 wraps the cause in a text that repeats the whole URL, query included.
    cause = getattr(error.args[0], "reason", error) if error.args else error
    text = " ".join(str(cause).split())[:_SHOWN_CHARACTERS]
    if isinstance(error, requests.exceptions.SSLError):
        return UnreachableError(f"no trusted TLS connection: {text}", where=where,
                                next_step="for a private authority, name its certificates with ca_file")
    if isinstance(error, TimeoutError | requests.exceptions.Timeout):
        return UnreachableError(f"no complete answer within {options.timeout:g} s", where=where)
    if isinstance(error, requests.exceptions.RequestException):
        return UnreachableError(f"no answer: {text}", where=where)
    return UnreachableError(f"cannot be sent: {text}", where=where, next_step="check ca_file")
