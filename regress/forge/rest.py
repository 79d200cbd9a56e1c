"""GitHub's REST interface, as far as the gate needs it: patient with rate limits, and clear about what is not allowed.

Waiting follows GitHub's "Rate limits for the REST API": `retry-after` where it is given, else `x-ratelimit-reset` where
nothing remains, else a minute; never longer in all than `patience_seconds`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from regress.errors import PublishError

if TYPE_CHECKING:
    import requests

_TIMEOUT_SECONDS = 20.0
_MOST_TRIES = 5
_MOST_PAGES = 50
_UNSAID_WAIT_SECONDS = 60.0


class NotPermittedError(PublishError):
    """The token may not do this; the text says what it would need."""


@dataclass(slots=True)
class Rest:
    """One repository's interface. Every method raises NotPermittedError for 401, 403 and 404, which GitHub answers for
    what a token may not see, and PublishError for everything else that is no success."""

    api_url: str
    token: str = field(repr=False)
    patience_seconds: float = 120.0
    sleep: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.time
    _session: requests.Session | None = None

    def get(self, path: str, parameters: dict[str, str] | None = None) -> Any:
        """One object."""
        return _content(self._call("GET", f"{self.api_url}{path}", None, parameters))

    def pages(self, path: str, parameters: dict[str, str] | None = None) -> Iterator[Any]:
        """Every item of a list, page after page, 100 a page."""
        url: str | None = f"{self.api_url}{path}"
        given: dict[str, str] | None = {"per_page": "100", **(parameters or {})}
        for _ in range(_MOST_PAGES):
            if url is None:
                return
            answer = self._call("GET", url, None, given)
            yield from _listed(answer)
            following = answer.links.get("next", {}).get("url")
            # Only our own server gets the token, whatever a list says comes next.
            url = following if following is not None and following.startswith(f"{self.api_url}/") else None
            given = None

    def send(self, method: str, path: str, body: dict[str, Any]) -> Any:
        """A change: POST or PATCH with a JSON body."""
        return _content(self._call(method, f"{self.api_url}{path}", body, None))

    def _call(self, method: str, url: str, body: dict[str, Any] | None,
              parameters: dict[str, str] | None) -> requests.Response:
        where = f"{method} {url}"
        for tried in range(1, _MOST_TRIES + 1):
            answer = self._once(method, url, body, parameters, where)
            if answer is not None and answer.status_code < 300:
                return answer
            wait = self._wait(answer, tried)
            if wait is None or wait > self.patience_seconds or tried == _MOST_TRIES:
                raise _refusal(answer, where, wait)
            self.patience_seconds -= wait
            self.sleep(wait)
        raise AssertionError("the last try returns or raises")

    def _once(self, method: str, url: str, body: dict[str, Any] | None, parameters: dict[str, str] | None,
              where: str) -> requests.Response | None:
        """One request; None when the server could not be reached, which is worth another try."""
        import requests

        if self._session is None:
            self._session = requests.Session()
            # Given an `auth`, requests does not put a login from ~/.netrc in the place of the token.
            self._session.auth = lambda prepared: prepared
        try:
            return self._session.request(
                method, url, json=body, params=parameters, timeout=_TIMEOUT_SECONDS, allow_redirects=False, headers={
                    "Authorization": f"Bearer {self.token}", "Accept": "application/vnd.github+json",
                    "X-GitHub-Api-Version": "2022-11-28", "User-Agent": "comm-regress"})
        except (requests.exceptions.ConnectionError, requests.exceptions.Timeout):
            return None
        except requests.exceptions.RequestException as error:
            raise PublishError(f"cannot be sent: {type(error).__name__}", where=where) from None

    def _wait(self, answer: requests.Response | None, tried: int) -> float | None:
        """Seconds before another try, None where another try would bring the same answer."""
        if answer is None or answer.status_code >= 500:
            return float(2 ** (tried - 1))
        if answer.status_code not in (403, 429):
            return None
        asked = answer.headers.get("retry-after", "")
        if asked.isdecimal():
            return float(asked)
        if answer.headers.get("x-ratelimit-remaining") == "0":
            reset = answer.headers.get("x-ratelimit-reset", "")
            return max(1.0, float(reset) - self.now() + 1) if reset.isdecimal() else _UNSAID_WAIT_SECONDS
        return _UNSAID_WAIT_SECONDS if answer.status_code == 429 or "rate limit" in _said(answer).lower() else None


def _content(answer: requests.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        raise PublishError(f"{answer.status_code} without JSON", where=answer.url,
                           next_step="check GITHUB_API_URL: something else answers there") from None


def _listed(answer: requests.Response) -> list[Any]:
    content = _content(answer)
    if not isinstance(content, list):
        raise PublishError("an answer that is no list", where=answer.url)
    return content


def _said(answer: requests.Response) -> str:
    try:
        content = answer.json()
    except ValueError:
        return answer.reason or ""
    said = content.get("message") if isinstance(content, dict) else None
    return " ".join(str(said or answer.reason).split())[:300]


def _refusal(answer: requests.Response | None, where: str, wait: float | None) -> PublishError:
    if answer is None:
        return PublishError("no answer", where=where, next_step="check GITHUB_API_URL and the network")
    seen = f"the server said {answer.status_code} {_said(answer)}"
    if wait is not None and answer.status_code < 500:
        return PublishError(seen, where=where, next_step=f"the rate limit ends in {wait:.0f} s; run it again then")
    if answer.status_code in (401, 403, 404):
        return NotPermittedError(seen, where=where)
    if 300 <= answer.status_code < 400:
        return PublishError(seen, where=where, next_step="the repository was moved or renamed: set GITHUB_REPOSITORY")
    return PublishError(seen, where=where)
