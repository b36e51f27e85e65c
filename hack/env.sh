# Sourced by the scripts: how everything of rik is built. Without the folder in them,
# what was compiled in one checkout serves every other.
export GOFLAGS='-buildvcs=false -trimpath'
