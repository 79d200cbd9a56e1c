from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from regress.errors import TraceInputError
from regress.trace.nccl_log import (
    ChannelCount,
    Choice,
    Link,
    Member,
    NcclLog,
    Topology,
    environment_for,
    parse_log,
    read_logs,
)

DATA = Path(__file__).parents[1] / "data" / "nsys"
AT = "node-1.example:4242:4250 [0] NCCL INFO "


def recorded() -> NcclLog:
    """Two H200 over NVLink, NCCL 2.28.9, subsystems INIT, ENV, TUNING, GRAPH and COLL; our own recording."""
    return parse_log("".join(lzma.open(path, "rt").read() for path in sorted(DATA.glob("nccl-2.28.9-*.xz"))))


def test_choices_of_a_recorded_launch() -> None:
    large = {(choice.operation, choice.size): (choice.algorithm, choice.protocol, choice.channels, choice.times)
             for choice in recorded().choices}
    assert large["AllReduce", 4096] == ("RING", "LL", 1, 4)
    assert large["AllReduce", 16777216] == ("RING", "SIMPLE", 24, 4)
    assert large["AllGather", 16777216] == ("RING", "SIMPLE", 24, 4)
    assert len(large) == 8


def test_places_of_a_recorded_launch() -> None:
    log = recorded()
    assert log.versions == ("2.28.9+cuda13.0",)
    assert log.transports == ("P2P/CUMEM",)
    assert log.links == (Link(0, 1, "P2P/CUMEM", False, 24), Link(1, 0, "P2P/CUMEM", False, 24))
    assert log.networks == ("Socket",)
    assert log.settings == (("NCCL_NVLS_ENABLE", "0"),)
    assert ChannelCount("coll", 24) in log.channel_counts
    assert Topology(1, 12, 60e9, 60e9, "NVL", "PIX") in log.topology
    assert {(member.rank, member.pid) for member in log.members if member.ranks == 2} == {(0, 661), (1, 662)}
    assert len({member.communicator for member in log.members if member.ranks == 2}) == 1
    assert ("AllReduce", 4194304, 8) in log.calls
    assert log.warnings == ()


@pytest.mark.parametrize(("line", "choice"), [
    ("33554432 Bytes -> Algo 1 proto 2 time 245.125000", Choice("", 33554432, "RING", "SIMPLE", None, 1)),
    ("AllReduce: 8192 Bytes -> Algo 0 proto 0 time 9.400000", Choice("AllReduce", 8192, "TREE", "LL", None, 1)),
    ("AllGather: 512 Bytes -> Algo 6 proto 2 time 12.0", Choice("AllGather", 512, "PAT", "SIMPLE", None, 1)),
    ("AllGather: 512 Bytes -> Algo 9 proto 7 time 12.0", Choice("AllGather", 512, "9", "7", None, 1)),
    ("AllReduce: 16777216 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
     Choice("AllReduce", 16777216, "NVLS", "SIMPLE", 16, 1)),
    ("ReduceScatter: 1024 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={4..4}",
     Choice("ReduceScatter", 1024, "RING", "LL128", 1, 1)),
    ("AllReduce [Symmetric]: 65536 Bytes -> Kernel AllReduce_AGxLL_R nchannels 8 nthreads 512",
     Choice("AllReduce", 65536, "SYMMETRIC", "AllReduce_AGxLL_R", 8, 1)),
    ("AllGather [Symmetric]: 65536 Bytes -> Kernel AllGather_LL nchannels 2 nthreads 512 nWorks 3",
     Choice("AllGather", 65536, "SYMMETRIC", "AllGather_LL", 2, 1)),
    ("AllGather [Copy Engine]: 1048576 Bytes -> cudaMemcpy; CE synchronization with NVLS",
     Choice("AllGather", 1048576, "COPY_ENGINE", None, None, 1)),
    ("AllGather [Hierarchical CE]: 1048576 Bytes -> RMA proxy + CE",
     Choice("AllGather", 1048576, "COPY_ENGINE", None, None, 1)),
])
def test_choices_in_every_generations_words(line: str, choice: Choice) -> None:
    assert parse_log(AT + line).choices == (choice,)


@pytest.mark.parametrize(("line", "link"), [
    ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", Link(0, 1, "P2P/CUMEM", False, 1)),
    ("Channel 00/1 : 0[0] -> 1[1] via P2P/IPC/CE", Link(0, 1, "P2P/IPC", False, 1)),
    ("Channel 03/0 : 2[b0000] -> 1[1b000] via P2P/IPC", Link(2, 1, "P2P/IPC", False, 1)),
    ("Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read", Link(0, 1, "P2P/direct", False, 1)),
    ("Channel 00/0 : 0[0] -> 3[3] via P2P/indirect/1[1]", Link(0, 3, "P2P/indirect", False, 1)),
    ("Channel 00 : 1[1] -> 0[0] via SHM/direct/direct", Link(1, 0, "SHM/direct", False, 1)),
    ("Channel 01/0 : 7[7] -> 8[0] [send] via NET/IB/3/GDRDMA(PCI)/Shared", Link(7, 8, "NET/IB", True, 1)),
    ("Channel 01/0 : 7[7] -> 8[0] [receive] via NET/Socket/0(4)", Link(7, 8, "NET/Socket", False, 1)),
])
def test_connections_in_every_form(line: str, link: Link) -> None:
    assert parse_log(AT + line).links == (link,)


def test_a_connection_counts_its_channels_once() -> None:
    lines = [f"{AT}Channel {channel:02d}/0 : 0[0] -> 1[1] via SHM/direct/direct" for channel in (0, 1, 1, 2)]
    assert parse_log("\n".join([*lines, AT + "Channel 00/08 :    0   1   2   3"])).links == (
        Link(0, 1, "SHM/direct", False, 3),)


@pytest.mark.parametrize(("line", "communicator", "rank"), [
    ("comm 0x55d0 rank 1 nranks 2 cudaDev 1 nvmlDev 1 busId 70 commId 0xb11ce71a - Init COMPLETE", "b11ce71a", 1),
    ("ncclCommInitRank comm 0x55d0 rank 0 nranks 2 cudaDev 1 nvmlDev 1 busId 70 commId 0xb1 - Init COMPLETE", "b1", 0),
    ("ncclCommSplit comm 0x5 rank 0 nranks 2 cudaDev 1 nvmlDev 1 busId 70 parent 0x4 splitCount 1 color 3 key 0 "
     "- Init COMPLETE", "", 0),
])
def test_members_say_which_process_is_which_rank(line: str, communicator: str, rank: int) -> None:
    assert parse_log(AT + line).members == (Member(communicator, rank, 2, 1, "70", "node-1.example", 4242),)


def test_the_start_of_an_initialisation_makes_no_member() -> None:
    line = "[Rank 0] ncclCommInitRank comm 0x5 rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 60 commId 0xb1 - Init START"
    assert parse_log(AT + line).members == ()


def test_channel_totals_of_both_forms() -> None:
    old = parse_log(AT + "4 coll channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer")
    new = parse_log(AT + "4 coll channels, 4 collnet channels, 16 nvls channels, 8 p2p channels, "
                         "2 p2p channels per peer")
    assert old.channel_counts == (ChannelCount("coll", 4), ChannelCount("nvls", 0), ChannelCount("p2p", 8))
    assert new.channel_counts == (ChannelCount("coll", 4), ChannelCount("collnet", 4), ChannelCount("nvls", 16),
                                  ChannelCount("p2p", 8))


def test_settings_are_those_nccl_took() -> None:
    log = parse_log(f"{AT}NCCL_ALGO set by environment to Ring\n{AT}NCCL_BUFFSIZE set by environment to 131072.\n")
    assert log.settings == (("NCCL_ALGO", "Ring"), ("NCCL_BUFFSIZE", "131072"))


@pytest.mark.parametrize(("line", "problem"), [
    ("h:1:2 [0] transport/net_socket.cc:62 NCCL WARN NET/Socket: peer closed",
     "NCCL warns on h: NET/Socket: peer closed (transport/net_socket.cc:62)"),
    ("[2026-01-02 03:04:05] h:1:2 [0] enqueue.cc:2063 (topoGetAlgoInfo) NCCL WARN No algorithm/protocol available",
     "NCCL warns on h: No algorithm/protocol available (enqueue.cc:2063)"),
    ("h:1:2 [0] NCCL INFO P2P is disabled between connected GPUs 0 and 1. You can repress this message.",
     "NCCL on h: P2P is disabled between connected GPUs 0 and 1. You can repress this message."),
])
def test_problems_are_warnings_once(line: str, problem: str) -> None:
    assert parse_log(f"{line}\n\n{line}\n").warnings == (problem,)


@pytest.mark.parametrize(("version", "said"), [
    ("2.18.3+cuda12.2", "does not log which algorithm"), ("2.21.5+cuda12.4", "subsystem TUNING was off"),
])
def test_a_log_without_choices_says_why(version: str, said: str) -> None:
    assert said in parse_log(f"NCCL version {version}\n").warnings[0]


def test_ranks_with_different_libraries_are_said() -> None:
    log = parse_log(f"NCCL version 2.28.9+cuda13.0\n{AT}NCCL version 2.27.7+cuda12.9\n")
    assert "different NCCL versions: 2.27.7+cuda12.9, 2.28.9+cuda13.0" in log.warnings[0]


@pytest.mark.parametrize("line", [
    "", "step 3 loss 0.5", "AllReduce: 16777216 Bytes -> Algo RING", AT + "AllReduce: 12 Bytes -> Algo RI",
    AT + "Channel 00/0 : 0[0] -> ", "NCCL INFO without a host", AT,
])
def test_lines_of_others_and_cut_lines_are_passed_over(line: str) -> None:
    assert parse_log(line) == NcclLog()


def test_logs_of_a_folder_are_one_launch(tmp_path: Path) -> None:
    assert read_logs(tmp_path) == NcclLog()
    for pid in (1, 2):
        (tmp_path / f"nccl-h-{pid}.log").write_text(f"h:{pid}:9 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\n")
    assert read_logs(tmp_path).versions == ("2.28.9+cuda13.0",)
    (tmp_path / "nccl-h-3.log").mkdir()
    with pytest.raises(TraceInputError, match="cannot be read"):
        read_logs(tmp_path)


def test_the_variables_write_where_the_reader_looks(tmp_path: Path) -> None:
    variables = environment_for(tmp_path / "50%")
    assert variables["NCCL_DEBUG"] == "INFO"
    assert set(variables["NCCL_DEBUG_SUBSYS"].split(",")) == {"INIT", "ENV", "TUNING"}
    assert variables["NCCL_DEBUG_FILE"] == f"{tmp_path}/50%%/nccl-%h-%p.log"
