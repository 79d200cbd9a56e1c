"""What NCCL says about itself: algorithm, protocol, channels and transports from its NCCL_DEBUG=INFO log.

The only evidence for algorithm and protocol: a kernel called `…_RING_LL` keeps that name whatever runs inside it.
Line formats read off NVIDIA/nccl v2.18.3 to v2.30.7 (src/debug.cc, init.cc, enqueue.cc, ce_coll.cc,
scheduler/symmetric_sched.cc, transport/*.cc, graph/search.cc):

| NCCL | how a choice is printed, by rank 0 of a communicator, subsystem TUNING |
|---|---|
| 2.18, 2.19 | not at all |
| 2.20 to 2.22 | size, algorithm and protocol as numbers, no operation |
| 2.23 | the same with the operation |
| from 2.24 | operation, size, names, first and last channel |
| from 2.27 | also `[Symmetric]` kernels; from 2.29 `[Copy Engine]`, which run no kernel |

Sizes are as printed: up to 2.23 the larger of what a rank sends and receives (for an all-gather the gathered total),
from 2.24 the count of the call times the type's size (for an all-gather one rank's part).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from regress.errors import TraceInputError
from regress.units import exact_size

ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
"""Names of the algorithm numbers that 2.20 to 2.23 print (NCCL_ALGO_* of nccl_common.h)."""

PROTOCOLS = ("LL", "LL128", "SIMPLE")
"""Names of the protocol numbers (NCCL_PROTO_*)."""

FIRST_WITH_CHOICES = (2, 20)


@dataclass(frozen=True, slots=True, order=True)
class Choice:
    """How one size of one operation was run.

    operation: "AllReduce" …, empty where this NCCL does not say. size: bytes, see the module's text for which.
    algorithm: "RING", "TREE", "NVLS" …, "SYMMETRIC" or "COPY_ENGINE". protocol: "LL", "LL128", "SIMPLE"; for a
    symmetric kernel its name. channels: thread blocks the work is spread over, None where not said. times: log lines.
    """

    operation: str
    size: int
    algorithm: str
    protocol: str | None
    channels: int | None
    times: int


@dataclass(frozen=True, slots=True, order=True)
class Link:
    """A connection between two ranks of one communicator.

    transport: "P2P/CUMEM", "P2P/IPC", "P2P/direct", "SHM/direct", "NET/Socket", "NET/IB" …. gpu_direct: over the
    network straight from GPU memory. channels: how many channels use it.
    """

    rank: int
    peer: int
    transport: str
    gpu_direct: bool
    channels: int


@dataclass(frozen=True, slots=True, order=True)
class Member:
    """One rank of one communicator, and the process that is it.

    communicator: its id as hexadecimal text, empty for one made by a split. device: CUDA ordinal in the process.
    """

    communicator: str
    rank: int
    ranks: int
    device: int
    bus_id: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True, order=True)
class ChannelCount:
    """Channels a communicator was given, by kind: "coll", "collnet", "nvls", "p2p"."""

    kind: str
    channels: int


@dataclass(frozen=True, slots=True, order=True)
class Topology:
    """One search over the machine's links (subsystem GRAPH): `within` and `across` are path types inside a node and
    between nodes, such as NVL, PIX, PHB, SYS; bandwidths in bytes per second."""

    pattern: int
    channels: int
    bandwidth_within: float
    bandwidth_across: float
    within: str
    across: str


@dataclass(frozen=True, slots=True)
class NcclLog:
    """All that was found in the logs of one launch; each tuple sorted and without repetition.

    versions: as printed, more than one when ranks loaded different libraries. settings: (NCCL_X, value) from the
    environment. networks: "Socket", "IB" …. calls: (operation, element count, how often) of subsystem COLL.
    problems: lines of level WARN, and INFO lines that say a faster path was given up.
    """

    versions: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    links: tuple[Link, ...] = ()
    members: tuple[Member, ...] = ()
    channel_counts: tuple[ChannelCount, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    networks: tuple[str, ...] = ()
    topology: tuple[Topology, ...] = ()
    calls: tuple[tuple[str, int, int], ...] = ()
    problems: tuple[str, ...] = ()

    @property
    def transports(self) -> tuple[str, ...]:
        """The kinds of connection in use, each once."""
        return tuple(sorted({link.transport for link in self.links}))

    @property
    def decisions(self) -> dict[str, str]:
        """How each operation and size was run most often: "AllReduce 16MiB" to "RING SIMPLE, 24 channels"."""
        most: dict[str, Choice] = {}
        for choice in self.choices:
            what = f"{choice.operation or 'collective'} {exact_size(choice.size)}"
            if what not in most or choice.times > most[what].times:
                most[what] = choice
        return {what: " ".join(part for part in (one.algorithm, one.protocol) if part)
                + (f", {one.channels} channels" if one.channels is not None else "") for what, one in most.items()}

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader of the run should know: problems, different versions, and choices that are not in the log."""
        said = list(self.problems)
        if len(self.versions) > 1:
            said.append(f"ranks loaded different NCCL versions: {', '.join(self.versions)}")
        if self.versions and not self.choices:
            number = tuple(int(part) for part in re.findall(r"\d+", self.versions[0])[:2])
            said.append(f"NCCL {self.versions[0]} does not log which algorithm it chose (2.20 and later do)"
                        if number < FIRST_WITH_CHOICES else
                        "NCCL's log names no algorithm: subsystem TUNING was off, or no collective was run")
        return tuple(said)


def environment_for(log_dir: Path) -> dict[str, str]:
    """Variables that make every rank write such a log into `log_dir` (which must exist), one file per host and pid.

    In a timed launch they cost a line per collective: set them for the traced one.
    """
    folder = str(log_dir).replace("%", "%%")
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,ENV,TUNING", "NCCL_DEBUG_FILE": f"{folder}/nccl-%h-%p.log"}


def read_logs(log_dir: Path) -> NcclLog:
    """Read all `nccl-*.log` of a folder as the logs of one launch; an empty result when there are none.

    TraceInputError when a file cannot be read.
    """
    collected = _Collector()
    for path in sorted(log_dir.glob("nccl-*.log")):
        try:
            with path.open(errors="replace") as lines:
                collected.read(lines)
        except OSError as error:
            raise TraceInputError(f"cannot be read: {error.strerror}", where=str(path)) from error
    return collected.result()


def is_own_line(line: str) -> bool:
    """Whether NCCL wrote the line: others speak of NCCL too, torch in the line that says why a rank died."""
    return _PREFIX.search(line) is not None


def parse_log(text: str) -> NcclLog:
    """Read the text of one log, or of the mixed output of several ranks."""
    collected = _Collector()
    collected.read(text.splitlines())
    return collected.result()


_PREFIX = re.compile(r"(?P<host>[\w.-]+):(?P<pid>\d+):\d+ \[\d+\] (?:(?P<where>\S+:\d+)(?: \(.*?\))? )?"
                     r"NCCL (?P<level>INFO|WARN) (?P<message>.*)")
_VERSION = re.compile(r"(?<!, )\bNCCL version (\d+\.\d+\.\d+\S*)")
"""As NCCL prints it; after a comma it is torch's word at the end of an error, without what NCCL adds for CUDA."""
_GIVEN_UP = re.compile(r"P2P is disabled between|Could not enable P2P|peer query failed|Legacy IPC not supported|"
                       r"Failed to bind NVLink SHARP|Disabling CollNet", re.IGNORECASE)


class _Collector:
    """Gathers what the lines say; `result` makes it a value."""

    def __init__(self) -> None:
        self.versions: set[str] = set()
        self.choices: Counter[tuple[str, int, str, str | None, int | None]] = Counter()
        self.links: dict[tuple[int, int, str, bool], set[str]] = {}
        self.members: set[Member] = set()
        self.channel_counts: set[ChannelCount] = set()
        self.settings: set[tuple[str, str]] = set()
        self.networks: set[str] = set()
        self.topology: set[Topology] = set()
        self.calls: Counter[tuple[str, int]] = Counter()
        self.problems: dict[str, None] = {}

    def read(self, lines: Iterable[str]) -> None:
        """Take in lines; those of other programs, and cut ones, are passed over."""
        for line in lines:
            if version := _VERSION.search(line):
                self.versions.add(version[1])
            elif prefix := _PREFIX.search(line):
                self._line(prefix)

    def _line(self, prefix: re.Match[str]) -> None:
        message = prefix["message"].strip()
        if prefix["level"] == "WARN":
            where = f" ({prefix['where']})" if prefix["where"] else ""
            self.problems.setdefault(f"NCCL warns on {prefix['host']}: {message}{where}")
            return
        if _GIVEN_UP.search(message):
            self.problems.setdefault(f"NCCL on {prefix['host']}: {message}")
        for pattern, take in _LINES:
            if match := pattern.match(message):
                take(self, match, prefix)
                return

    def named_choice(self, match: re.Match[str], _: re.Match[str]) -> None:
        """From 2.24."""
        channels = int(match["high"]) - int(match["low"]) + 1
        self.choices[match["operation"], int(match["size"]), match["algorithm"].upper(),
                     match["protocol"].upper(), channels] += 1

    def numbered_choice(self, match: re.Match[str], _: re.Match[str]) -> None:
        """From 2.20 to 2.23."""
        algorithm, protocol = int(match["algorithm"]), int(match["protocol"])
        self.choices[match["operation"] or "", int(match["size"]),
                     ALGORITHMS[algorithm] if algorithm < len(ALGORITHMS) else str(algorithm),
                     PROTOCOLS[protocol] if protocol < len(PROTOCOLS) else str(protocol), None] += 1

    def symmetric_choice(self, match: re.Match[str], _: re.Match[str]) -> None:
        """From 2.27: kernels on symmetric memory."""
        self.choices[match["operation"], int(match["size"]), "SYMMETRIC", match["kernel"], int(match["channels"])] += 1

    def copied_choice(self, match: re.Match[str], _: re.Match[str]) -> None:
        """From 2.29: copies instead of kernels."""
        self.choices[match["operation"], int(match["size"]), "COPY_ENGINE", None, None] += 1

    def link(self, match: re.Match[str], _: re.Match[str]) -> None:
        """A channel's connection; the text behind the second part says how, not what."""
        path = match["path"].split("/")
        transport = "/".join(part.split(" ")[0] for part in path[:2])
        key = (int(match["rank"]), int(match["peer"]), transport, "GDRDMA" in match["path"])
        self.links.setdefault(key, set()).add(match["channel"])

    def member(self, match: re.Match[str], prefix: re.Match[str]) -> None:
        """The line at the end of a communicator's initialisation."""
        self.members.add(Member(match["communicator"] or "", int(match["rank"]), int(match["ranks"]),
                                int(match["device"]), match["bus"], prefix["host"], int(prefix["pid"])))

    def counted_channels(self, match: re.Match[str], _: re.Match[str]) -> None:
        """The totals; "p2p channels per peer" is another thing."""
        found = re.findall(r"(\d+) (coll|collnet|nvls|p2p) channels(?! per peer)", match[0])
        self.channel_counts.update(ChannelCount(kind, int(number)) for number, kind in found)

    def setting(self, match: re.Match[str], _: re.Match[str]) -> None:
        """A variable that NCCL took."""
        self.settings.add((match["name"], match["value"].rstrip(".")))

    def network(self, match: re.Match[str], _: re.Match[str]) -> None:
        """The network that would be used between nodes."""
        self.networks.add(match["name"])

    def searched(self, match: re.Match[str], _: re.Match[str]) -> None:
        """A result of the topology search, printed in GB/s of 1e9 bytes."""
        self.topology.add(Topology(int(match["pattern"]), int(match["channels"]), float(match["within_bw"]) * 1e9,
                                   float(match["across_bw"]) * 1e9, match["within"], match["across"]))

    def call(self, match: re.Match[str], _: re.Match[str]) -> None:
        """A call as the program made it."""
        self.calls[match["operation"], int(match["count"])] += 1

    def result(self) -> NcclLog:
        """What was found so far."""
        ordered = sorted(self.choices.items(), key=lambda item: (item[0][0], item[0][1], item[0][2], str(item[0][3:])))
        return NcclLog(
            versions=tuple(sorted(self.versions)), choices=tuple(Choice(*key, times) for key, times in ordered),
            links=tuple(sorted(Link(*key, len(channels)) for key, channels in self.links.items())),
            members=tuple(sorted(self.members)), channel_counts=tuple(sorted(self.channel_counts)),
            settings=tuple(sorted(self.settings)), networks=tuple(sorted(self.networks)),
            topology=tuple(sorted(self.topology)),
            calls=tuple((*key, times) for key, times in sorted(self.calls.items())), problems=tuple(self.problems))


_LINES: tuple[tuple[re.Pattern[str], Callable[[_Collector, re.Match[str], re.Match[str]], None]], ...] = tuple(
    (re.compile(pattern), take) for pattern, take in (
        (r"(?P<operation>\w+): (?P<size>\d+) Bytes -> Algo (?P<algorithm>[A-Za-z]\w*) proto (?P<protocol>\w+) "
         r"channel\{Lo\.\.Hi\}=\{(?P<low>\d+)\.\.(?P<high>\d+)\}", _Collector.named_choice),
        (r"(?:(?P<operation>\w+): )?(?P<size>\d+) Bytes -> Algo (?P<algorithm>\d+) proto (?P<protocol>\d+)",
         _Collector.numbered_choice),
        (r"(?P<operation>\w+) \[Symmetric\]: (?P<size>\d+) Bytes -> Kernel (?P<kernel>\S+) nchannels (?P<channels>\d+)",
         _Collector.symmetric_choice),
        (r"(?P<operation>\w+) \[(?:Copy Engine|Hierarchical CE)\]: (?P<size>\d+) Bytes ->", _Collector.copied_choice),
        (r"Channel (?P<channel>\d+)(?:/\d+)? : (?P<rank>\d+)\[\w+\] -> (?P<peer>\d+)\[\w+\] (?:\[\w+\] )?"
         r"via (?P<path>\S.*)", _Collector.link),
        (r".*\brank (?P<rank>\d+) nranks (?P<ranks>\d+) cudaDev (?P<device>\d+) .*?busId (?P<bus>\w+)"
         r"(?:.*?commId 0x(?P<communicator>[0-9a-f]+))?.*- Init COMPLETE", _Collector.member),
        (r"\d+ coll channels,.*", _Collector.counted_channels),
        (r"(?P<name>NCCL_\w+) set by environment to (?P<value>.*)", _Collector.setting),
        (r"(?:Using network|Assigned NET plugin) (?P<name>\S+)", _Collector.network),
        (r"Pattern (?P<pattern>\d+), crossNic \d+, nChannels (?P<channels>\d+), bw (?P<within_bw>[\d.]+)/"
         r"(?P<across_bw>[\d.]+), type (?P<within>\w+)/(?P<across>\w+)", _Collector.searched),
        (r"(?P<operation>\w+): opCount \w+ sendbuff \S+ recvbuff \S+ count (?P<count>\d+) ", _Collector.call)))
