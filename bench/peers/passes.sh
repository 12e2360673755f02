#!/usr/bin/env bash
# Compares forward passes of forerun and llama.cpp by their number of rows, on the same GGUF file.
# The programs alternate.
#
# Usage: bench/peers/passes.sh FOLDER MODEL.gguf [REPEATS]
#
#   FOLDER    the folder of install.sh, with llama.cpp
#   REPEATS   how often each program runs (5)
#
# Environment variables (and defaults): FORERUN, the program (forerun); ROWS (1,8,512); PAST, the
# tokens in the cache (128); ROUNDS, passes of each run (15); FLASH_ATTENTION of llama.cpp, on or
# off (both are measured, and the faster one counts); FURTHER, a program with the options of
# llama-bench, such as ik_llama.cpp's, which takes turns, too. Its passes have logits for the last
# row only. If it has no option -d, PAST must be 0.
set -euo pipefail
[ $# -ge 2 ] || { sed -n 's/^# \{0,1\}//p' "$0" | sed -n '2,14p' >&2; exit 2; }
folder="$1" model="$2" repeats="${3:-5}"
forerun="${FORERUN:-forerun}" rows="${ROWS:-1,8,512}" past="${PAST:-128}" rounds="${ROUNDS:-15}"
threads="$(nproc)"
largest="$(tr ',' '\n' <<<"$rows" | sort -n | tail -1)"
context=$((past + largest > 256 ? past + largest : 256))
depth=()
[ "$past" = 0 ] || depth=(-d "$past")
results="$(mktemp)"
trap 'rm -f "$results"' EXIT

for _ in $(seq "$repeats"); do
    "$forerun" devices --model "$model" --threads "$threads" --past "$past" --rows "$rows" --rounds "$rounds" |
        sed -n 's/^ *\([0-9]*\) rows \([0-9.]*\) .*/forerun \1 \2/p' >>"$results"
    for flash in ${FLASH_ATTENTION:-on off}; do
        OMP_PROC_BIND=true OMP_PLACES=cores "$folder/build/llama_passes" "$past" "$rounds" "$rows" -m "$model" \
            -t "$threads" -tb "$threads" -c "$context" -b "$context" -ub "$context" -fa "$flash" |
            sed "s/^/llama.cpp-fa-$flash /" >>"$results"
    done
    for count in ${FURTHER:+$(tr ',' ' ' <<<"$rows")}; do
        if [ "$count" = 1 ]; then tokens=(-p 0 -n 16); else tokens=(-p "$count" -n 0); fi
        "$FURTHER" -m "$model" -t "$threads" "${tokens[@]}" "${depth[@]}" -b "$context" -ub "$context" \
            -r "$rounds" -o json |
            python3 -c 'import json, sys
for test in json.load(sys.stdin):
    print("further", test["n_prompt"] or 1, test["avg_ns"] / (test["n_gen"] or 1) / 1e6)' >>"$results"
    done
done

python3 - "$results" <<'PYTHON'
import collections, statistics, sys

times = collections.defaultdict(lambda: collections.defaultdict(list))
for line in open(sys.argv[1]):
    program, rows, milliseconds = line.split()
    times[int(rows)][program].append(float(milliseconds))
for rows, programs in sorted(times.items()):
    medians = {program: statistics.median(values) for program, values in programs.items()}
    ours = medians.pop("forerun")
    peer = min(medians, key=medians.get)
    ratios = sorted(theirs / own for own, theirs in zip(programs["forerun"], programs[peer]))
    print(f"{rows:>4} rows: forerun {ours:.2f} ms, {peer} {medians[peer]:.2f} ms: "
          f"{medians[peer] / ours:.2f} times as fast ({ratios[0]:.2f} to {ratios[-1]:.2f})")
PYTHON
