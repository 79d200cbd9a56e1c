"""Finished runs to publish, and a server that misbehaves on demand."""

from __future__ import annotations

import itertools
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone

from regress.publish import Result
from regress.record import Environment, Finding, Verdict
from regress.units import Unit
from tests.history.factory import ALLREDUCE, run

_COUNT = itertools.count()
MACHINE = Environment({"gpu_model": "NVIDIA H200", "gpu_count": 2, "backend": "nccl"},
                      {"nccl_version": "2.30.7", "torch_version": "2.13.0", "driver_version": "580.1"})


def result(age: timedelta = timedelta(minutes=1), *, main: bool = True, value: float = 0.001) -> Result:
    """A run that started that long ago, of a repository of its own, so that no test sees another's series."""
    number = next(_COUNT)
    began = datetime.now(timezone.utc) - age
    base = run(number, run_id=f"run{number}-{began:%H%M%S%f}", main=main, environment=MACHINE, value=value,
               started_at=began.isoformat(timespec="milliseconds"))
    finding = Finding(ALLREDUCE.id, "allreduce_seconds", Unit.SECONDS, "limit", Verdict.REGRESSION, "value", "beyond",
                      now=value * 1.1, limit=0.05)
    return Result(replace(base, findings=(*base.findings, finding), verdict=Verdict.REGRESSION),
                  f"org/project-{number}-{began:%H%M%S%f}")


@dataclass
class Fault:
    """What the misbehaving server does with each request, and what it saw."""

    answer: bytes = b"HTTP/1.1 204 No Content\r\n\r\n"
    delay_s: float = 0.0
    trickle_s: float = 0.0
    requests: list[bytes] = field(default_factory=list)


def http_answer(status: str, body: bytes = b"", content_type: str = "text/plain", **headers: str) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(body)}",
             *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items()), "Connection: close", "", ""]
    return "\r\n".join(lines).encode() + body


@contextmanager
def faulty_server(fault: Fault, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """A server on 127.0.0.1 that answers every request with `fault.answer`, late or bit by bit."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(0.05)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                link, _ = listener.accept()
            except TimeoutError:
                continue
            threading.Thread(target=_serve_one, args=(link, fault, tls, stop), daemon=True).start()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        stop.set()
        thread.join()
        listener.close()


def _serve_one(link: socket.socket, fault: Fault, tls: ssl.SSLContext | None, stop: threading.Event) -> None:
    try:
        with (tls.wrap_socket(link, server_side=True) if tls else link) as wire:
            wire.settimeout(5)
            fault.requests.append(_request(wire.recv))
            stop.wait(fault.delay_s)
            if fault.trickle_s:
                for byte in fault.answer:
                    wire.sendall(bytes([byte]))
                    if stop.wait(fault.trickle_s):
                        return
            else:
                wire.sendall(fault.answer)
    except OSError:
        return  # the client gave up, which is what some tests are about


def _request(receive: Callable[[int], bytes]) -> bytes:
    content = b""
    while b"\r\n\r\n" not in content and (piece := receive(65536)):
        content += piece
    head, _, body = content.partition(b"\r\n\r\n")
    lengths = (line.split(b":")[1] for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    length = int(next(lengths, b"0"))
    deadline = time.monotonic() + 5
    while len(body) < length and time.monotonic() < deadline and (piece := receive(65536)):
        body += piece
    return head + b"\r\n\r\n" + body
