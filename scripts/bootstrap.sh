#!/bin/sh
# Creates .venv with pinned versions. make calls it as: scripts/bootstrap.sh PYTHON package|dev
#   package   installs perdure with its own dependencies
#   dev       also installs the development tools and the servers that tests use
# As root with apt-get it installs missing Debian packages; otherwise it prints what to install.
set -eu
cd "$(dirname "$0")/.."
python=${1:-python3}
purpose=${2:-dev}

# Servers and programs that the tests use, one per line: the command, and its Debian package.
components='
bwrap bubblewrap
chromium chromium
curl curl
openssl openssl
postgres postgresql
redis-server redis-server
pgbouncer pgbouncer
'

say() { echo "bootstrap: $*" >&2; }
fail() { say "$*"; exit 1; }
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }
# Debian installs PostgreSQL's programs outside the PATH, and some servers where only root has them in it.
has() { (PATH=$PATH:/usr/sbin:/usr/local/sbin$(printf ':%s' /usr/lib/postgresql/*/bin /usr/pgsql-*/bin) && command -v "$1" >/dev/null); }
install() { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends "$@" >/dev/null </dev/null; }

# The tests start their own servers and need only the programs. Two files keep the Debian packages from
# starting services, now or at boot, and from creating a PostgreSQL cluster. Existing files are left
# alone; those created here are removed at the end.
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

command -v "$python" >/dev/null || fail "$python was not found: install Python 3.11 or newer, or name it: make PYTHON=/path/to/python3"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "$("$python" --version) is too old: perdure needs Python 3.11 or newer; name it: make PYTHON=/path/to/python3"

make_venv() { "$python" -m venv --clear .venv && has_pip; }
has_pip() { .venv/bin/python -m pip --version; }

# Debian's python3 comes without ensurepip and cannot create a complete venv.
if ! has_pip >/dev/null 2>&1 && ! make_venv >/dev/null 2>&1; then
    package=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    can_install || fail "$python cannot create a virtual environment: install $package (apt install $package), then run make again"
    say "installing $package"
    install "$package" || fail "could not install $package: install it, then run make again"
    make_venv >/dev/null
fi

case $purpose in
package) target=. ;;
dev) target='.[dev]' ;;
*) fail "unknown argument $purpose: use package or dev" ;;
esac
# The first variable pins what is installed; the second one, for newer versions of pip, what builds it.
PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt \
    .venv/bin/python -m pip install --quiet --disable-pip-version-check --editable "$target"
[ "$purpose" = dev ] || exit 0

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
