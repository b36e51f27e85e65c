#!/usr/bin/env bash
# Says what is being done, with the time, so that long steps are not silent.
printf '\033[1m==>\033[0m [%(%H:%M:%S)T] %s\n' -1 "$*" >&2
