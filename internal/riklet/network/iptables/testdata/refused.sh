#!/bin/sh
# Stands for a program that begins to print and is then refused.
echo "*nat"
echo "no permission" >&2
exit 4
