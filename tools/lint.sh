#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# tools/lint.sh format: clang-format on every source file, in place.
# tools/lint.sh check [all]: the checks of the source tree, clang-format, and clang-tidy on the files that
# differ from the upstream branch (LINT_BASE names another commit), or on all.
set -euo pipefail
cd "$(dirname "$0")/.."
preset=release

sources() { git ls-files -co --exclude-standard -- "$@" | sort -u | while read -r file; do [ ! -f "$file" ] || echo "$file"; done; }

need() {
  command -v "$1" > /dev/null && return
  printf 'error: %s is not installed\n  fix: %s\n' "$1" "apt-get install ${1}, or name another one with ${2}=PROGRAM" >&2
  exit 2
}
formatter=${CLANG_FORMAT:-clang-format-19}
tidy=${CLANG_TIDY:-clang-tidy-19}
need "$formatter" CLANG_FORMAT

if [ "${1-}" = format ]; then
  sources '*.cpp' '*.h' | xargs -r "$formatter" -i
  exit
fi

failed=0
python3 -B tools/check_layers.py || failed=1
python3 -B tools/check_tests.py build/$preset/compile_commands.json || failed=1

if sources '*.cpp' '*.h' | xargs -r "$formatter" --dry-run -Werror; then
  echo "every source file is formatted"
else
  echo "  fix: make format" >&2
  failed=1
fi

if ! grep -q 'clang++' build/$preset/compile_commands.json; then
  echo "clang-tidy left out: the build is not clang's" >&2
  exit $failed
fi
need "$tidy" CLANG_TIDY
if [ "${2-}" = all ]; then
  files=$(sources '*.cpp')
else
  base=${LINT_BASE:-$(git merge-base HEAD '@{upstream}' 2> /dev/null || git rev-parse HEAD)}
  files=$( (git diff --name-only "$base" -- '*.cpp' && git ls-files -o --exclude-standard -- '*.cpp') | sort -u)
  echo "clang-tidy on the files that differ from $(git rev-parse --short "$base"): ALL=1 for all"
fi
for file in $files; do [ ! -f "$file" ] || echo "$file"; done |
  xargs -r -P "$(nproc)" -n 1 "$tidy" -p build/$preset --quiet --warnings-as-errors='*' 2> >(grep -v 'warnings generated' >&2) || failed=1
[ $failed -eq 0 ] && echo "clang-tidy found nothing"
exit $failed
