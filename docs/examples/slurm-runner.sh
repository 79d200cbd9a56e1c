#!/usr/bin/env bash
# One GitHub runner in one Slurm job: sbatch docs/examples/slurm-runner.sh
# It takes a single job and ends; a cron job or the job's own `sbatch --begin` puts the next one in the queue.
#SBATCH --job-name=comm-regress-runner
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --gpus-per-node=8
#SBATCH --gpu-bind=none
#SBATCH --time=02:00:00
set -euo pipefail

: "${RUNNER_HOME:?the folder that the runner was unpacked in}"
: "${RUNNER_URL:?such as https://github.com/OWNER/REPOSITORY}"
: "${RUNNER_TOKEN_FILE:?a file with a registration token, readable by this user only}"

work=$(mktemp -d "${SLURM_TMPDIR:-/tmp}/comm-regress-runner.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp -r "$RUNNER_HOME/." "$work/"
cd "$work"

# The history outlives the node: a folder that every node sees, or a postgresql:// URL in the workflow.
export XDG_STATE_HOME=${REGRESS_STATE:-$HOME/.local/state}
export ACTIONS_RUNNER_HOOK_JOB_STARTED=${REGRESS_HOOK:-/opt/comm-regress/job-started.sh}

./config.sh --unattended --ephemeral --disableupdate --url "$RUNNER_URL" --token "$(cat "$RUNNER_TOKEN_FILE")" \
  --name "$(hostname)-${SLURM_JOB_ID:-0}" --labels gpu
./run.sh
