#!/bin/sh
# Installs rik from this directory: "./install.sh server", or "./install.sh agent --server URL
# --token-file FILE". "rik uninstall" removes it. "./install.sh server --help" lists the flags.
set -e
dir=$(cd "$(dirname "$0")" && pwd)
if [ $# -eq 0 ]; then set -- server; fi
case $1 in
  agent) exec "$dir/riklet" install "$@" ;;
  *) exec "$dir/rik" install "$@" ;;
esac
