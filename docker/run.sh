#!/usr/bin/env bash
# Runs the gate of the repository in this folder inside the image, with the flags that matter:
#
#   docker/run.sh                                       the gate, history in ~/.local/state/comm-regress
#   docker/run.sh pytest --comm-regress -k allreduce    any other command
#   REGRESS_GPU_METRICS=1 docker/run.sh ...             with the one capability that GPU metrics need
#
# REGRESS_IMAGE names the image (default comm-regress), REGRESS_GPUS the GPUs ('all', or '"device=0,1"'),
# REGRESS_HISTORY the history's folder on the host, REGRESS_SHM_SIZE the shared memory where the host's is not shared.
set -euo pipefail

image=${REGRESS_IMAGE:-comm-regress}
history=${REGRESS_HISTORY:-${XDG_STATE_HOME:-$HOME/.local/state}/comm-regress/$(basename "$PWD")}
mkdir -p "$history"

flags=(
  --rm
  --init                     # reaps ranks that outlive their launcher, and passes signals on to the gate
  --gpus "${REGRESS_GPUS:-all}"
  --ulimit memlock=-1        # NCCL pins buffers; the default of 64 KiB makes that fail on some networks
  --ulimit stack=67108864
  --security-opt no-new-privileges
  --cap-drop ALL
  --user "$(id -u):$(id -g)"
  --env HOME=/tmp
  --volume "$PWD:/work"
  --volume "$history:/history"
  --volume /tmp/comm-regress-host.lock:/tmp/comm-regress-host.lock
)
# Two gates on this host must meet at one lock, in containers or not.
touch /tmp/comm-regress-host.lock 2> /dev/null || true

# Docker's own /dev/shm has 64 MiB, whatever the memory limit, and NCCL's buffers do not fit in it.
if [ -n "${REGRESS_SHM_SIZE:-}" ]; then
  flags+=(--shm-size "$REGRESS_SHM_SIZE")
else
  flags+=(--ipc=host)
fi

# CUDA, NVTX and NCCL ranges need no capability. Sampling the GPU's own counters does: SYS_ADMIN, unless the driver was
# loaded with NVreg_RestrictProfilingToAdminUsers=0.
if [ "${REGRESS_GPU_METRICS:-0}" = 1 ]; then
  flags+=(--cap-add SYS_ADMIN)
fi

# The commit, the pull request and what is known of NCCL's settings; never the whole environment, which has tokens.
for name in CI GITHUB_ACTIONS GITHUB_ACTOR GITHUB_BASE_REF GITHUB_HEAD_REF GITHUB_REF_NAME GITHUB_REPOSITORY GITHUB_SHA \
    ${!NCCL_@} ${!TORCH_NCCL_@}; do
  if [ -n "${!name:-}" ]; then flags+=(--env "$name"); fi
done

if [ -t 0 ] && [ -t 1 ]; then flags+=(--interactive --tty); fi
exec "${REGRESS_DOCKER:-docker}" run "${flags[@]}" "$image" "$@"
