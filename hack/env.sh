# Sourced by the scripts: which Go builds rik, and how. GOFLAGS leaves out the folder that the
# source is in: what was compiled in one checkout serves every other. The compiler writes
# nothing for debuggers, because nothing that the scripts build keeps it: that saves a twelfth
# of the compiler's time, and an eighth of the time of each of more than a hundred links.
export GOFLAGS='-buildvcs=false -trimpath -gcflags=all=-dwarf=false'
# netgo and osusergo are for rik, which needs cgo for SQLite: its net and os/user are then the
# ones of the programs that have no cgo. Otherwise Go compiles both, and everything that imports
# them, once for each. gRPC's trace pages bring templates, and with those the linker keeps every
# method of every type: 4 MB of riklet.
export RIK_TAGS=containers_image_openpgp,netgo,osusergo,grpcnotrace
# The Go that hack/deps.sh fetched, if it had to. It knows its own GOROOT.
export PATH="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/bin/toolchain/bin:$PATH"
unset GOROOT
