#!/usr/bin/env bash
# Runs on the GPU runner before every job: ACTIONS_RUNNER_HOOK_JOB_STARTED=/opt/comm-regress/job-started.sh in the
# runner's .env. A status other than 0 ends the job before its first step. It lies on the machine, so no pull request
# can change it, whatever it does to workflow files.
#
# REGRESS_ALLOW_FORKS=1 lets code from forks in, which only a machine that is thrown away after each job should do.
# REGRESS_IDLE_MIB is how much memory of an idle GPU may be in use (default 64).
set -euo pipefail

say() { echo "comm-regress: $*"; }
refuse() {
  echo "::error title=This runner refused the job::$*"
  exit 1
}

# 1. Whose code is it? The event is GitHub's own file.
python3 - "${GITHUB_EVENT_PATH:-/dev/null}" "${REGRESS_ALLOW_FORKS:-0}" << 'PYTHON' ||
import json, sys

path, allowed = sys.argv[1:]
event = json.load(open(path))
here = (event.get("repository") or {}).get("full_name")
for place in ("pull_request", "workflow_run"):
    inner = event.get(place) or {}
    repository = (inner.get("head") or {}).get("repo") if place == "pull_request" else inner.get("head_repository")
    # A pull request whose repository was deleted has none: it cannot be this one.
    if inner and allowed != "1" and (repository or {}).get("full_name") != here:
        sys.exit(1)
PYTHON
  refuse "code from a fork, or an event that cannot be read, does not run on this machine; see docs/runner.md, Code from forks"

# 2. What earlier jobs left in shared memory: torch's and NCCL's segments of processes that are gone, this user's only.
shared=${REGRESS_SHM:-/dev/shm}
if [ -d "$shared" ]; then
  while IFS= read -r -d '' stale; do
    if ! fuser -s "$stale" 2> /dev/null; then
      rm -f -- "$stale"
      say "removed stale $stale"
    fi
  done < <(find "$shared" -maxdepth 1 -type f -user "$(id -un)" \( -name 'nccl-*' -o -name 'torch_*' \) -mmin +10 -print0)
fi

# 3. Is the machine ours? Memory, not the list of processes: that is empty inside a container.
if command -v nvidia-smi > /dev/null 2>&1; then
  # A field and not the bare command, which ends with 0 even when the driver has lost a GPU.
  gpus=$(nvidia-smi --query-gpu=index,name,memory.used,persistence_mode,mig.mode.current --format=csv,noheader,nounits) ||
    refuse "nvidia-smi cannot read the GPUs; take this runner out of service"
  while IFS=, read -r index name used persistence mig; do
    case $used in
      *[!0-9\ ]* | '') refuse "GPU $index ($name ) does not tell its memory: '${used# }'" ;;
    esac
    if [ "${used// /}" -gt "${REGRESS_IDLE_MIB:-64}" ]; then
      refuse "GPU $index ($name ) has ${used# } MiB in use before the job starts: something else runs on it"
    fi
    say "GPU $index:$name, persistence$persistence, MIG$mig"
  done <<< "$gpus"
fi
