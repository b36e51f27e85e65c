#!/usr/bin/env bash
# Fetches the servers of MariaDB and PostgreSQL from Debian into a directory for tests. It
# installs nothing, and fetches nothing twice. It prints the environment variables with which
# tests find the servers, as arguments of env. usage: databases.sh DIR
set -euo pipefail
cd "$(dirname "$0")/.."
dir=$1
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
  { echo "this is not Debian or Ubuntu: install the servers, or set RIK_MARIADBD and RIK_POSTGRES_BIN" >&2; exit 1; }

# fetch NAME PACKAGE... unpacks packages into $dir/NAME. After a failure, $dir/NAME does not exist.
fetch() {
  local name=$1 tmp
  shift
  [ ! -d "$dir/$name" ] || return 0
  hack/say.sh "fetching $name from Debian"
  mkdir -p "$dir"
  tmp=$(mktemp -d "$dir/.$name.XXXXXX")
  (cd "$tmp" && { apt-get download -qq "$@" || { apt-get update -qq && apt-get download -qq "$@"; }; } &&
    mkdir root && for package in *.deb; do dpkg-deb -x "$package" root; done) >&2 || { rm -rf "$tmp"; return 1; }
  mv "$tmp/root" "$dir/$name"
  rm -rf "$tmp"
}

# The newest PostgreSQL of this Debian, such as postgresql-15.
postgresql=$(apt-cache depends postgresql | sed -n 's/^ *Depends: \(postgresql-[0-9]*\)$/\1/p')
fetch mariadb mariadb-server-core mariadb-common libnuma1 liburing2
fetch postgresql "$postgresql" libpq5
programs=$(cd "$dir" && pwd)
libraries=$programs/mariadb/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH 2>/dev/null || echo "$(uname -m)-linux-gnu")
libraries=$libraries:${libraries/mariadb/postgresql}
echo "RIK_MARIADBD=$programs/mariadb/usr/sbin/mariadbd"
echo "RIK_MARIADB_SHARE=$programs/mariadb/usr/share/mysql"
echo "RIK_POSTGRES_BIN=$programs/postgresql/usr/lib/postgresql/${postgresql#postgresql-}/bin"
echo "LD_LIBRARY_PATH=$libraries"
