#!/usr/bin/env bash
# Runs a command that may take long, and shows its progress. On a terminal it updates one line;
# otherwise it prints a line every five seconds. It prints nothing for a command that takes less
# than two seconds. usage: progress.sh LABEL COMMAND...
#
# If the command is "go build -v", RIK_PACKAGES can name a file with the import paths that it will
# compile. The script counts these, and prints all other lines at once. Without RIK_PACKAGES it
# prints the output of the command only if the command fails.
set -uo pipefail
shopt -s lastpipe
label=$1
shift
declare -A packages=()
if [ -n "${RIK_PACKAGES:-}" ]; then
  while IFS= read -r line; do packages[$line]=1; done <"$RIK_PACKAGES"
fi
total=${#packages[@]} compiled=0 modules=0 now='' kept=()
start=$SECONDS next=2 interval=5 columns=0
if [ -t 2 ]; then
  interval=1
  columns=$(stty size <&2 2>/dev/null | cut -d' ' -f2)
  [ "${columns:-0}" -gt 20 ] || columns=80
fi

elapsed() {
  local s=$((SECONDS - start))
  if [ $s -lt 60 ]; then printf '%ds' $s; else printf '%dm%02ds' $((s / 60)) $((s % 60)); fi
}

# counts prints how many modules were fetched and how many packages were compiled.
counts() {
  local text=''
  [ $modules -eq 0 ] || text+=", modules fetched: $modules"
  [ $total -eq 0 ] || text+=", packages compiled: $compiled of $total"
  printf '%s' "$text"
}

clear_line() { [ $columns -eq 0 ] || printf '\r\033[K' >&2; }

show() {
  local text doing=$now
  [ $((SECONDS - start)) -ge $next ] || return 0
  next=$((SECONDS - start + interval))
  if [ $total -gt 0 ] && [ $compiled -eq $total ]; then doing="the last packages and the linker"; fi
  if [ $total -gt 0 ] && [ -z "$now" ]; then doing="the C compiler or the linker"; fi
  text="    $label: $(elapsed)$(counts)${doing:+ ($doing)}"
  if [ $columns -eq 0 ]; then
    printf '%s\n' "$text" >&2
  else
    clear_line
    printf '%s' "${text:0:$((columns - 1))}" >&2
  fi
}

note() {
  local line=$1
  case $line in
    "go: downloading "*)
      modules=$((modules + 1))
      now=${line#go: downloading }
      ;;
    *)
      if [ $total -gt 0 ] && [ -n "$line" ] && [ -n "${packages[$line]:-}" ]; then
        compiled=$((compiled + 1))
        packages[$line]=''
        now=$line
      elif [ -n "${RIK_PACKAGES:-}" ]; then
        clear_line
        printf '%s\n' "$line" >&2
      else
        kept+=("$line")
        now=$line
      fi
      ;;
  esac
}

# watch reads lines until the command has ended. It keeps a line that is incomplete after a second
# until the rest arrives.
watch() {
  local line begun='' status
  while :; do
    line=''
    IFS= read -r -t 1 line
    status=$?
    begun+=$line
    if [ $status -eq 0 ] || { [ $status -le 128 ] && [ -n "$begun" ]; }; then
      note "$begun"
      begun=''
    fi
    [ $status -eq 0 ] || [ $status -gt 128 ] || break
    show
  done
}

"$@" </dev/null 2>&1 | watch
status=${PIPESTATUS[0]}
clear_line
if [ "$status" -ne 0 ]; then
  [ ${#kept[@]} -eq 0 ] || printf '%s\n' "${kept[@]}" >&2
  echo "$label: failed after $(elapsed): $*" >&2
elif [ $((SECONDS - start)) -ge 2 ]; then
  echo "    $label: done in $(elapsed)$(counts)" >&2
fi
exit "$status"
