#!/bin/sh
# Stands for a program that prints a line without an end.
head -c 2000000 /dev/zero | tr "\0" x
