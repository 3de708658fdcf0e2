#!/usr/bin/env bash
# Runs tests with the oldest supported versions of what the library requires, then with the newest: those of the stages
# without any extra, and those of command line, tables, stores and exporters with all of them.
#
#   scripts/check_versions.sh [minimal|newest|minimal-extras|newest-extras ...]      all unless named
#
# Each set gets an environment of its own in a temporary directory, which is removed afterwards. The oldest versions
# are the lower bounds of pyproject.toml, taken literally. PYTHON chooses the interpreter, TORCH a version of torch that
# pip installs first (for places that have one build of it only), TESTS what is run. uv installs all else: pip looks for
# versions of the oldest extras that fit together for more than eight minutes, uv for seconds.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
stages="tests/plan tests/discover tests/formats tests/shape tests/stream tests/compat tests/packaging tests/structured/test_messages.py"
extras="tests/cli tests/tables tests/store tests/observe tests/faults/test_obstore.py tests/faults/test_other_stores.py"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# requirements OPERATOR [extras]: what pyproject.toml requires, with "==" at its lower bounds and with "" at no bound.
requirements() {
    "$python" - "$root/pyproject.toml" "$@" <<'PY'
import os, re, sys, tomllib
from pathlib import Path

project = tomllib.loads(Path(sys.argv[1]).read_text())["project"]
extras = project["optional-dependencies"]
named = [name for name in extras if name not in ("all", "test", "lint", "docs")] if len(sys.argv) > 3 else []
for requirement in [*project["dependencies"], *(each for name in named for each in extras[name])]:
    if requirement.startswith("torch>=") and os.environ.get("TORCH"):
        requirement = f"torch>={os.environ['TORCH']}"
    name, bound = re.fullmatch(r"([\w-]+(?:\[[\w,-]+\])?)>=([\d.]+)", requirement).groups()
    print(f"{name}=={bound}" if sys.argv[2] == "==" or (name == "torch" and "TORCH" in os.environ) else name)
PY
}

check() {
    local name=$1 tests
    read -r -a tests <<<"${TESTS:-$2}"
    shift 2
    echo "== $name: $*"
    "$python" -m venv "$work/$name"
    local pip=("$work/$name/bin/python" -m pip --disable-pip-version-check --quiet)
    "${pip[@]}" install uv ${TORCH:+"torch==$TORCH"}
    "$work/$name/bin/uv" pip install --quiet --python "$work/$name/bin/python" --index-strategy unsafe-best-match \
        "$@" "pytest>=8" "hypothesis>=6.100" "psutil>=5.9" "setuptools>=77"
    # A wheel, not the tree: what is tested is what users install, and nothing is written into the tree.
    mkdir -p "$work/source"
    cp -r "$root/pyproject.toml" "$root/setup.py" "$root/README.md" "$root/LICENSE" "$root/src" "$work/source/"
    "${pip[@]}" install --no-deps --no-build-isolation "$work/source"
    "$work/$name/bin/python" -m pip list 2>/dev/null | grep -E -i '^(numpy|pyarrow|fsspec|torch|epochplan) '
    (cd "$root" && "$work/$name/bin/python" -m pytest -q -p no:cacheprovider "${tests[@]}")
}

# What tests of the extras need besides; boto3 as s3fs wants it.
tools=("s3fs[boto3]" "moto[server]>=5.1" opentelemetry-sdk "pyiceberg[glue]" pyiceberg-core tokenizers)

chosen=("$@")
[[ ${#chosen[@]} -gt 0 ]] || chosen=(minimal newest minimal-extras newest-extras)
for name in "${chosen[@]}"; do
    case $name in
        minimal) mapfile -t wanted < <(requirements ==) && check "$name" "$stages" "${wanted[@]}" ;;
        newest) mapfile -t wanted < <(requirements "") && check "$name" "$stages" "${wanted[@]}" ;;
        minimal-extras) mapfile -t wanted < <(requirements == extras) && check "$name" "$extras" "${wanted[@]}" "${tools[@]}" ;;
        newest-extras) mapfile -t wanted < <(requirements "" extras) && check "$name" "$extras" "${wanted[@]}" "${tools[@]}" ;;
        *)
            echo "unknown set $name: minimal, newest, minimal-extras or newest-extras" >&2
            exit 2
            ;;
    esac
done
