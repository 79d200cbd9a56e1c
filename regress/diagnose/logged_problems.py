"""What NCCL and torch.distributed said themselves."""

from __future__ import annotations

from regress.diagnose import CRITICAL, WARNING, Circumstances, Need, Rule
from regress.record import Diagnosis
from regress.trace.rank_output import GRAVE

_HINTS = (
    ("devices used by this process are currently unknown", "pass device_id to init_process_group, or device_ids to "
     "dist.barrier"),
    ("Guessing device ID", "pass device_id to init_process_group"),
    ("Grad strides do not match", "make the parameter contiguous, or use gradient_as_bucket_view=False: DDP copies it "
     "in every step"),
    ("find_unused_parameters=True", "leave find_unused_parameters out: it searches the graph in every step"),
    ("destroy_process_group() was not called", "call dist.destroy_process_group() at the end"),
    ("NVLink SHARP", "check fabric manager and the GPUs' NVLink state: NVLS was given up"),
    ("P2P is disabled", "unset NCCL_P2P_DISABLE and NCCL_P2P_LEVEL, and check PCIe ACS"),
    ("shm", "give the container a larger /dev/shm (docker run --shm-size)"))


def _examine(seen: Circumstances, against: Circumstances | None) -> list[Diagnosis]:
    said = [*(seen.nccl.problems if seen.nccl is not None else ()), *(seen.messages or ())]
    if seen.nccl is not None and len(seen.nccl.versions) > 1:
        said.append(f"ranks loaded different NCCL versions: {', '.join(seen.nccl.versions)}")
    if not said:
        return []
    grave = [text for text in said if GRAVE.search(text)]
    first = (grave or said)[0]
    hint = next((hint for part, hint in _HINTS if part.lower() in first.lower()), None)
    return [Diagnosis(
        "logged_problems", CRITICAL if grave else WARNING,
        {"lines": len(said), "grave": len(grave), "first": first},
        f"the ranks' logs say: {first}" + (f" (and {len(said) - 1} other lines)" if len(said) > 1 else ""),
        hint or "read the ranks' output around that line; NCCL_DEBUG=INFO shows what came before it")]


RULE = Rule("logged_problems", "NCCL or torch.distributed warns, times out or retries in the ranks' output",
            "lines of level WARN of NCCL's log, and messages of torch's c10d and DDP; a time-out or error is critical",
            examine=_examine, needs=(Need.MESSAGES,))
