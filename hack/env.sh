# The scripts source this file. It sets which Go builds rik, and its flags. -trimpath leaves the
# path of the checkout out of the programs, so that all checkouts share the build cache. The
# compiler writes no debug information, because nothing that the scripts build keeps it. That saves
# 8 % of the time to compile, and 12 % of the time of each of more than a hundred links.
export GOFLAGS='-buildvcs=false -trimpath -gcflags=all=-dwarf=false'
# rik needs cgo for SQLite, and the other programs are built without cgo. netgo and osusergo give
# rik the same net and os/user as the others. Without these tags Go compiles the two packages,
# and all that import them, twice. grpcnotrace leaves out gRPC's trace pages, which use
# templates. With templates the linker keeps each method of each type, which adds 4 MB to riklet.
# sqlite_omit_load_extension: a static program cannot load SQLite's extensions, and rik uses none.
export RIK_TAGS=containers_image_openpgp,netgo,osusergo,grpcnotrace,sqlite_omit_load_extension
# If hack/deps.sh fetched a Go, it comes first. It finds its own GOROOT.
export PATH="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/bin/toolchain/bin:$PATH"
unset GOROOT
