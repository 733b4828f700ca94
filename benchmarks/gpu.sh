#!/usr/bin/env bash
# Measures on a GPU all that the docs want to know of one, in one call of at most ten minutes.
#
#     bash benchmarks/gpu.sh               # results/gpu_*; a part that fails is named at the end
#     bash benchmarks/gpu.sh --dry-run     # the same commands with tiny sizes, on any machine, into a temporary folder
#
# OUT=folder writes there instead of into results/.
cd "$(dirname "$0")/.." || exit
if [ "${1:-}" = --dry-run ]; then
    out=$(mktemp -d); sizes="64 256"; loco="16"; many=256; steps=100000; learn=20; seconds=1
else
    out=${OUT:-results}; sizes="2048 16384 131072 1048576"; loco="2048 16384"; many=65536; steps=268435456; learn=120; seconds=3
fi
export out many
failed=()
part() { # name, seconds, command: its output is shown and kept
    local name=$1 limit=$2; shift 2
    echo "== $name: $*"
    timeout -k 10 -s INT "$limit" "$@" 2>&1 | tee "$out/gpu_$name.log" | tail -n 12
    # 124: the time limit, which is how the learning curve ends.
    [[ ${PIPESTATUS[0]} =~ ^(0|124|130)$ ]] || failed+=("$name")
}
speed() { # name, environment, numbers of environments
    part "$1" 120 python benchmarks/scaling.py --env-ids "$2" --num-envs $3 --num-devices --seconds $seconds \
        --out "$out/gpu_$1" --again
}
{ date -u +%F; nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader; git rev-parse HEAD
  python -c 'import jax; print("jax", jax.__version__, jax.devices())'; } > "$out/gpu_machine.txt" 2>&1
cat "$out/gpu_machine.txt"

rm -f "$out/gpu_trace.json"
# Without CUDA graphs: a profile does not count the kernels in them.
XLA_FLAGS="" part trace_small 45 python benchmarks/gpu_trace.py --out "$out/gpu_trace.json" -- ppo.py \
    --num-envs $((many / 32))
XLA_FLAGS="" part trace_large 60 python benchmarks/gpu_trace.py --out "$out/gpu_trace.json" -- ppo.py --num-envs $many
speed breakout Breakout-MinAtar "$sizes"
XLA_FLAGS="" speed breakout_without_graphs Breakout-MinAtar "$sizes"
runs=$(mktemp -d)
part learning $learn python ppo.py --num-envs $many --total-timesteps $steps --num-eval-episodes 0 \
    --runs-dir "$runs" --run-name gpu_learning
cp "$runs/gpu_learning/curve.png" "$out/gpu_learning.png"; cp "$runs/gpu_learning/summary.json" "$out/gpu_learning.json"
speed locomotion kinetix/locomotion "$loco"
if [ ${#failed[@]} -gt 0 ]; then echo "failed: ${failed[*]}"; exit 1; fi
echo "all parts are in $out"
