#!/bin/sh
# Make .venv from requirements-dev.lock, or bring it up to date.
#
# The stamp .venv/.packages goes before the first change and comes back after
# the last one: a .venv without it was left half-made and is made anew.
set -eu

stamp=.venv/.packages

fit() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    if [ -n "${PYTHON:-}" ]; then
        fit "$PYTHON" && echo "$PYTHON" && return
        echo "PYTHON=$PYTHON is no Python 3.11 or newer." >&2
        return 1
    fi
    for candidate in python3 python python3.13 python3.12 python3.11; do
        fit "$candidate" && echo "$candidate" && return
    done
    echo "Python 3.11 or newer is needed and was not found; name one: make setup PYTHON=/path/to/python" >&2
    return 1
}

make_venv() {
    python=$(find_python)
    if [ -e .venv ]; then
        echo "An unfinished .venv was found; making it anew"
        rm -rf .venv
    fi
    echo "Making .venv with $("$python" --version)"
    if ! "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
        version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
        echo "This Python cannot make virtual environments. On Debian and Ubuntu: apt-get install python$version-venv" >&2
        return 1
    fi
    "$python" -m venv .venv
}

if [ -e "$stamp" ] && fit .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; then
    rm "$stamp"
else
    make_venv
fi

echo "Installing $(grep -c '^[a-z].*==' requirements-dev.lock) locked packages; the first time takes some minutes"
export PIP_DISABLE_PIP_VERSION_CHECK=1
.venv/bin/python -m pip install --quiet --require-hashes -r requirements-dev.lock
echo "Installing the project itself"
.venv/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
touch "$stamp"
