#!/usr/bin/env bash
# Runs the tests of the stages with the oldest supported versions of what the library requires, then with the newest.
#
#   scripts/check_versions.sh [minimal|newest ...]      both unless named
#
# Each set gets an environment of its own in a temporary directory, which is removed afterwards. The oldest versions
# are the lower bounds of pyproject.toml, taken literally. PYTHON chooses the interpreter; PIP_EXTRA_INDEX_URL or
# PIP_FIND_LINKS may name a place with CPU builds of torch, which are smaller. TESTS overrides what is run.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
read -r -a tests <<<"${TESTS:-tests/plan tests/discover tests/read tests/shape tests/stream tests/compat tests/packaging tests/structured/test_messages.py}"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

lower_bounds() {
    "$python" - "$root/pyproject.toml" <<'PY'
import re, sys, tomllib
from pathlib import Path

for requirement in tomllib.loads(Path(sys.argv[1]).read_text())["project"]["dependencies"]:
    name, bound = re.fullmatch(r"([\w-]+)>=([\d.]+)", requirement).groups()
    print(f"{name}=={bound}")
PY
}

check() {
    local name=$1
    shift
    echo "== $name: $*"
    "$python" -m venv "$work/$name"
    local pip=("$work/$name/bin/python" -m pip --disable-pip-version-check --quiet)
    "${pip[@]}" install "$@" "pytest>=8" "hypothesis>=6.100" "psutil>=5.9" "setuptools>=77"
    # A wheel, not the tree: what is tested is what users install, and nothing is written into the tree.
    mkdir -p "$work/source"
    cp -r "$root/pyproject.toml" "$root/README.md" "$root/LICENSE" "$root/src" "$work/source/"
    "${pip[@]}" install --no-deps --no-build-isolation "$work/source"
    "$work/$name/bin/python" -m pip list 2>/dev/null | grep -E -i '^(numpy|pyarrow|fsspec|torch|torch-dataloader-utils) '
    (cd "$root" && HYPOTHESIS_PROFILE=ci "$work/$name/bin/python" -m pytest -q -p no:cacheprovider "${tests[@]}")
}

chosen=("$@")
[[ ${#chosen[@]} -gt 0 ]] || chosen=(minimal newest)
for name in "${chosen[@]}"; do
    case $name in
        minimal)
            mapfile -t oldest < <(lower_bounds)
            check minimal "${oldest[@]}"
            ;;
        newest) check newest numpy pyarrow fsspec torch ;;
        *)
            echo "unknown set $name: minimal or newest" >&2
            exit 2
            ;;
    esac
done
