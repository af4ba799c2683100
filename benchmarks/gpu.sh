#!/bin/sh
# Everything that needs a GPU, within nine minutes on one card: the tests marked gpu, then the timings, which are written
# to benchmarks/results/gpu.json. Installs nothing: run it where mpnn's `test` extra and a torch for CUDA are installed.
#
#   sh benchmarks/gpu.sh            on a card
#   sh benchmarks/gpu.sh --dry      small cases on the CPU, into a file beside; shows that the script is whole
#
# PYTHON is the interpreter, TESTS and SECONDS_LEFT the seconds for the tests and for the timings. A test that fails does
# not stop the timings, whose own gate compares every case with its peers first; it does make the script fail.
set -u
cd "$(dirname "$0")/.." || exit 2
PYTHON=${PYTHON:-python}
TESTS=${TESTS:-240}
SECONDS_LEFT=${SECONDS_LEFT:-260}

log=$(mktemp)
trap 'rm -f "$log"' EXIT
timeout "$TESTS" "$PYTHON" -m pytest -m gpu -q -p no:cacheprovider tests >"$log" 2>&1
tests=$?
cat "$log"
words=$(tail -n 1 "$log") # pytest's own count
[ $tests -eq 124 ] && words="not finished in $TESTS s"

timeout $((SECONDS_LEFT + 30)) "$PYTHON" -m benchmarks.gpu --seconds "$SECONDS_LEFT" --tests "$words" "$@"
timings=$?
echo "tests marked gpu: $words; timings ended with $timings"
[ "$tests" -eq 0 ] && [ "$timings" -eq 0 ]
