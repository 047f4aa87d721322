#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs ctest of a preset: tools/run_tests.sh PRESET [ctest's arguments]. Prints what ctest prints, then how
# many tests were skipped and which, and ctest's summary last. The exit code is ctest's.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1
shift

# Tests run side by side, each with the threads it asks for: waiting threads must sleep, not spin.
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-PASSIVE}
# UBSan prints where it stopped; a report ends the test.
export UBSAN_OPTIONS=${UBSAN_OPTIONS:-print_stacktrace=1}

# Passes lines through until the summary begins, which is held back until the skipped tests are named.
arrange() {
  local line part=tests
  local -a summary=() skipped=()
  while IFS= read -r line; do
    case $line in
      [0-9]*'% tests passed'*) part=summary ;;
      'The following tests FAILED:') part=summary ;;
      'The following tests did not run:') part=skipped && continue ;;
    esac
    case $part in
      tests) printf '%s\n' "$line" ;;
      summary) summary+=("$line") ;;
      skipped) [ -z "$line" ] || skipped+=("$line") ;;
    esac
  done
  printf 'skipped tests: %d\n' "${#skipped[@]}"
  [ ${#skipped[@]} -eq 0 ] || printf '%s\n' "${skipped[@]}"
  [ ${#summary[@]} -eq 0 ] || { echo && printf '%s\n' "${summary[@]}"; }
}

set +e
ctest --preset "$preset" -j "${CTEST_PARALLEL_LEVEL:-$(nproc)}" --no-label-summary "$@" 2>&1 | arrange
exit "${PIPESTATUS[0]}"
