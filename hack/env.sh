# Sourced by the scripts: how everything of rik is built. Without the folder in them,
# what was compiled in one checkout serves every other. Nothing that the scripts build
# keeps what a debugger reads, so the compiler does not write it: a twelfth of its time,
# and an eighth of the time of each of a hundred and more links.
export GOFLAGS='-buildvcs=false -trimpath -gcflags=all=-dwarf=false'
