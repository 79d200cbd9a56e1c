"""What each sink that speaks HTTP makes of a server that fails: what is tried again, what is not, and what is said."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trustme

from regress.delivery import RefusedError, UnreachableError, WithheldError
from regress.delivery.http import HttpOptions
from regress.errors import EXIT_UNTRUSTED, PublishError
from regress.publish import Sink
from regress.publish.influx import INFLUX, InfluxOptions
from regress.publish.otlp import OTLP, OtlpOptions
from regress.publish.pushgateway import PUSHGATEWAY, PushgatewayOptions
from regress.publish.remote_write import REMOTE_WRITE, RemoteWriteOptions
from regress.publish.webhook import WEBHOOK, WebhookOptions
from tests import servers
from tests.publish.factory import Fault, faulty_server, http_answer, result

Made = tuple[Sink[Any], Callable[[str, HttpOptions], Any]]
SINKS: dict[str, Made] = {
    "remote_write": (REMOTE_WRITE, lambda url, http: RemoteWriteOptions(url, http=http)),
    "pushgateway": (PUSHGATEWAY, lambda url, http: PushgatewayOptions(url, http=http)),
    "influx": (INFLUX, lambda url, http: InfluxOptions(url, http=http)),
    "otlp": (OTLP, lambda url, http: OtlpOptions(url, http=http)),
    "webhook": (WEBHOOK, lambda url, http: WebhookOptions(url, http=http)),
}
QUICK = HttpOptions(timeout=0.5)


@pytest.fixture(params=sorted(SINKS))
def made(request: pytest.FixtureRequest) -> Made:
    return SINKS[str(request.param)]


def push(made: Made, base: str, http: HttpOptions = QUICK) -> str:
    sink, options_of = made
    options = options_of(base, http)
    return sink.send(sink.render(result(), options)[0], options)


def failure(made: Made, fault: Fault, http: HttpOptions = QUICK) -> PublishError:
    with faulty_server(fault) as base, pytest.raises(PublishError) as caught:
        push(made, base, http)
    assert caught.value.exit_status == EXIT_UNTRUSTED
    assert "127.0.0.1" in caught.value.text
    return caught.value


@pytest.mark.parametrize(("status", "again"), [
    ("400 Bad Request", False), ("401 Unauthorized", False), ("403 Forbidden", False), ("404 Not Found", False),
    ("413 Payload Too Large", False), ("408 Request Timeout", True), ("429 Too Many Requests", True),
    ("500 Internal Server Error", True), ("502 Bad Gateway", True), ("503 Service Unavailable", True)])
def test_what_the_server_said_decides_and_is_repeated(made: Made, status: str, again: bool) -> None:
    error = failure(made, Fault(http_answer(status, b"because\n  of reasons")))
    assert isinstance(error, UnreachableError if again else RefusedError)
    assert f"the server said {status[:3]} because of reasons" in error.text


def test_a_server_that_asks_for_time_is_heard(made: Made) -> None:
    error = failure(made, Fault(http_answer("429 Slow Down", b"", Retry_After="120")))
    assert isinstance(error, UnreachableError)
    assert error.retry_after_seconds == 120
    error = failure(made, Fault(http_answer("503 Busy", b"", Retry_After="Fri, 31 Dec 2027 23:59:59 GMT")))
    assert isinstance(error, UnreachableError)
    assert error.retry_after_seconds is None


def test_down(made: Made) -> None:
    with pytest.raises(UnreachableError, match="no answer"):
        push(made, f"http://127.0.0.1:{servers.free_port()}")


def test_no_such_host(made: Made) -> None:
    with pytest.raises(UnreachableError, match="no answer"):
        push(made, "http://no-such-host.invalid")


@pytest.mark.parametrize("url", ["", "no-scheme", "ftp://127.0.0.1/x", "http://"])
def test_a_url_that_is_none(made: Made, url: str) -> None:
    with pytest.raises(RefusedError, match=r"the URL cannot be used|No host"):
        push(made, url)


@pytest.mark.parametrize("fault", [Fault(delay_s=5.0), Fault(http_answer("200 OK", b"x" * 50), trickle_s=0.05)],
                         ids=["silent", "trickling"])
def test_a_slow_server_costs_no_more_than_the_timeout(made: Made, fault: Fault) -> None:
    begin = time.monotonic()
    error = failure(made, replace(fault, requests=[]), HttpOptions(timeout=0.3))
    assert isinstance(error, UnreachableError)
    assert "no complete answer within 0.3 s" in error.text
    assert time.monotonic() - begin < 4.0


def test_a_connection_cut_before_and_inside_the_answer(made: Made) -> None:
    assert isinstance(failure(made, Fault(b"")), UnreachableError)
    cut = http_answer("200 OK", b"x" * 100)[:-50]
    assert isinstance(failure(made, Fault(cut)), UnreachableError)


def test_an_answer_that_is_no_http(made: Made) -> None:
    assert isinstance(failure(made, Fault(b"SSH-2.0-OpenSSH_9.2\r\n")), UnreachableError)


def test_a_login_page_is_not_taken_for_success(made: Made) -> None:
    page = http_answer("200 OK", b"<html><title>Log in</title></html>", "text/html; charset=utf-8")
    error = failure(made, Fault(page))
    assert isinstance(error, RefusedError)
    assert "a web page answered instead of the server: <html><title>Log in" in error.text


def test_redirects_are_not_followed(made: Made) -> None:
    error = failure(made, Fault(http_answer("302 Found", b"", Location="http://elsewhere.invalid/")))
    assert isinstance(error, RefusedError)
    assert "redirects (302)" in error.text


def test_a_huge_answer_is_cut(made: Made) -> None:
    error = failure(made, Fault(http_answer("400 Bad", b"x" * 10_000_000)), HttpOptions(timeout=5))
    assert len(error.text) < 1000


def test_credentials_come_from_the_environment_and_are_never_shown(made: Made, monkeypatch: pytest.MonkeyPatch,
                                                                   tmp_path: Path) -> None:
    monkeypatch.setenv("PUSH_TOKEN", "s3cr3t")
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login ada password wrong\n")
    monkeypatch.setenv("NETRC", str(netrc))
    fault = Fault(http_answer("401 Unauthorized", b"who are you"))
    error = failure(made, fault, HttpOptions(timeout=2, bearer_token_env="PUSH_TOKEN"))
    assert b"Authorization: Bearer s3cr3t" in fault.requests[0]
    assert "s3cr3t" not in error.text
    monkeypatch.setenv("PUSH_USER", "ada")
    basic = Fault()
    with faulty_server(basic) as base:
        push(made, base, HttpOptions(timeout=2, user_env="PUSH_USER", password_env="PUSH_TOKEN"))
    assert b"Authorization: Basic YWRhOnMzY3IzdA==" in basic.requests[0]
    monkeypatch.delenv("PUSH_TOKEN")
    with pytest.raises(WithheldError, match="PUSH_TOKEN is not set"):
        push(made, "http://127.0.0.1:9", HttpOptions(bearer_token_env="PUSH_TOKEN"))
    monkeypatch.setenv("PUSH_TOKEN", "тайна")
    for unusable in (HttpOptions(bearer_token_env="PUSH_TOKEN"),
                     HttpOptions(user_env="PUSH_USER", password_env="PUSH_TOKEN")):
        with pytest.raises(WithheldError, match="PUSH_TOKEN is not in Latin-1") as caught:
            push(made, "http://127.0.0.1:9", unusable)
        assert "тайна" not in caught.value.text


def test_what_is_wrong_on_this_side_is_no_refusal(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnreachableError, match="the URL holds a password") as caught:
        push(made, "http://ada:s3cr3t@127.0.0.1:9")
    assert "s3cr3t" not in caught.value.text
    monkeypatch.delenv("NO_PROXY")
    for proxy in ("http://u:s3cr3t@:::", "ftp://proxy.invalid", "socks5://127.0.0.1:9"):
        monkeypatch.setenv("http_proxy", proxy)
        with pytest.raises(UnreachableError) as caught:
            push(made, "http://metrics.invalid:9")
        assert "s3cr3t" not in caught.value.text


def test_an_address_that_cannot_be_read_is_named_without_its_secrets(made: Made) -> None:
    sink, options_of = made
    for url in ("http://ada:s3cr3t@host:port/x?key=t0k3n", "http://[::1/x?key=t0k3n", "http://host:99999999/x"):
        with pytest.raises(RefusedError, match="the URL cannot be used") as caught:
            push(made, url)
        for text in (caught.value.text, sink.destination(options_of(url, QUICK))):
            assert "s3cr3t" not in text
            assert "t0k3n" not in text


def test_tls_with_a_private_authority(made: Made, tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    trusted = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(trusted))
    with faulty_server(Fault(), context) as base:
        with pytest.raises(UnreachableError, match=r"no trusted TLS connection.*ca_file"):
            push(made, base, HttpOptions(timeout=5))
        with pytest.raises(WithheldError, match="check ca_file"):
            push(made, base, HttpOptions(timeout=5, ca_file=str(tmp_path / "absent.pem")))
        assert push(made, base, HttpOptions(timeout=5, ca_file=str(trusted))).endswith("(204)")
