#!/bin/sh
# Makes .venv with the pinned versions, and sees to the system components the tests use.
# Called by make as: scripts/bootstrap.sh <python>
# Where we are root and apt-get is there, what is missing is installed; elsewhere we say what to install.
set -eu
cd "$(dirname "$0")/.."
python=${1:-python3}

# System components the tests use, one per line: the command to look for, and Debian's package for it.
components='
curl curl
openssl openssl
postgres postgresql
redis-server redis-server
pgbouncer pgbouncer
'

say() { echo "bootstrap: $*" >&2; }
fail() { say "$*"; exit 1; }
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
# Debian has PostgreSQL's programs beside the path, and some servers where only root looks.
has() { (PATH=$PATH:/usr/sbin:/usr/local/sbin$(printf ':%s' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin) && command -v "$1" >/dev/null); }
install() { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null </dev/null; }

# The tests start servers of their own and need the programs alone: what a package would start, now or
# at the next boot, is not started, and PostgreSQL's makes no cluster. Both wishes are files that the
# packages look for; one that is there already is left as it is, ours go again.
no_start=/usr/sbin/policy-rc.d
no_cluster=/etc/postgresql-common/createcluster.d/perdure-bootstrap.conf
ours=''
trap '[ -z "$ours" ] || rm -f $ours' EXIT
trap 'exit 130' HUP INT TERM
install_quietly() {
    if [ ! -e "$no_start" ]; then
        ours="$ours $no_start"
        printf '#!/bin/sh\nexit 101\n' >"$no_start" && chmod 755 "$no_start"
    fi
    if [ ! -e "$no_cluster" ]; then
        ours="$ours $no_cluster"
        mkdir -p "${no_cluster%/*}" && echo 'create_main_cluster = false' >"$no_cluster"
    fi
    install "$@" || return 1
    ! command -v systemctl >/dev/null || systemctl --quiet disable "$@" >/dev/null 2>&1 || true
}

command -v "$python" >/dev/null || fail "no $python found: install Python 3.11 or newer, or name one: make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old: perdure needs 3.11 or newer; name another one: make PYTHON=/path/to/python3"

make_venv() { "$python" -m venv --clear .venv && has_pip; }
has_pip() { .venv/bin/python -m pip --version; }

# Debian's python3 comes without ensurepip: it begins a venv and cannot finish it.
if ! has_pip >/dev/null 2>&1 && ! make_venv >/dev/null 2>&1; then
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    can_install || fail "$python cannot make a virtual environment: install $package (apt install $package), then run make again"
    say "installing $package"
    install "$package" || fail "could not install $package: install it, then run make again"
    make_venv >/dev/null
fi

# The first variable pins what is installed; the second, for newer pips, what builds it.
PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'

while read -r command package; do
    [ -n "$command" ] && ! has "$command" || continue
    if can_install; then
        say "installing $package"
        install_quietly "$package" || true
    fi
    has "$command" && continue
    [ "${CI:-}" != true ] || fail "$command is missing (Debian: $package), and in CI nothing may be skipped"
    say "WARNING: $command is missing (Debian: $package): the tests that need it will be SKIPPED"
done <<END
$components
END
