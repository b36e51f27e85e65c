#!/usr/bin/env bash
# Prints a message with the time, so that a script shows what it does.
printf '\033[1m==>\033[0m [%(%H:%M:%S)T] %s\n' -1 "$*" >&2
