package syncer

import (
	"k8s.io/apimachinery/pkg/types"
)

// presence is what is known of an object on one side.
type presence int

const (
	// unknown: the cache has no such object, which proves nothing.
	unknown presence = iota
	// cached: the cache has it, and may be behind.
	cached
	// live: the server was asked in this pass, and has it.
	live
	// absent: the server was asked in this pass, and has no such object.
	absent
)

// upstreamView is what decide needs to know of the object upstream.
type upstreamView struct {
	seen presence
	uid  types.UID
	// deleting: somebody has deleted it, which nobody can take back.
	deleting bool
	// targeted: its labels send it to this cluster.
	targeted bool
	// held: it bears our finalizer.
	held bool
	// recreate: it asks to be made anew where it cannot be changed.
	recreate bool
	// deleteData: it lets data be deleted.
	deleteData bool
	// finished: its work is done, by the status that this cluster last reported.
	finished bool
}

// downstreamView is what decide needs to know of the object downstream.
type downstreamView struct {
	seen presence
	// upstreamUID is the one it bears; without it the object is somebody else's.
	upstreamUID types.UID
	deleting    bool
	// inSync: it is as upstream wants it.
	inSync bool
	// stuck: the server said that it cannot become so but by being made anew.
	stuck bool
	// deleteData: it lets data be deleted.
	deleteData bool
}

// typeView is what is known of the type upstream.
type typeView int

const (
	typeUnknown typeView = iota
	// typeServed: the server was asked in this pass; the type is not ending.
	typeServed
	// typeEnding: the type is being removed, or has been.
	typeEnding
)

// view is all that decide needs to know.
type view struct {
	// excluded: an object that never leaves its side.
	excluded bool
	// claim: its deletion deletes data.
	claim bool
	up    upstreamView
	down  downstreamView
	kind  typeView
}

// step is what is to be done next about one object.
type step int

const (
	// stepNothing: all is said and done, or something else is waited for.
	stepNothing step = iota
	// stepAskUpstream, stepAskDownstream, stepAskType: ask the server, then decide anew.
	stepAskUpstream
	stepAskDownstream
	stepAskType
	// stepHold: put our finalizer on the object upstream.
	stepHold
	// stepCreate: make the object downstream.
	stepCreate
	// stepApply: bring the object downstream, which is ours, to what upstream wants.
	stepApply
	// stepReport: they are the same; bring the status up.
	stepReport
	// stepDelete: delete the object downstream, and only the very one that was seen.
	stepDelete
	// stepRelease: take our finalizer from the object upstream.
	stepRelease
	// stepForeign: the name is taken downstream by an object that is not ours.
	stepForeign
	// stepFormer: the name is taken downstream by the remains of a former object.
	stepFormer
	// stepStuck: a field that cannot change has changed, and nobody asked for a new one.
	stepStuck
	// stepWithhold: nothing is deleted, because the type upstream ends.
	stepWithhold
)

// decide says the next step. The caller does it and, but for the final ones, decides
// anew with what it has learned.
func decide(v view) step {
	switch {
	case v.excluded:
		return stepNothing
	case v.up.seen == unknown:
		return stepAskUpstream
	case v.up.seen == absent:
		return remove(v)
	case v.up.targeted && !v.up.deleting:
		return keep(v)
	case v.up.seen == cached && !v.up.deleting:
		return stepAskUpstream // a cache that is behind may not take work away
	default:
		return remove(v)
	}
}

// keep is for an object that upstream wants in this cluster.
func keep(v view) step {
	switch {
	case v.down.seen == unknown:
		return stepAskDownstream
	case v.down.seen == absent && v.up.finished:
		return stepNothing // the cluster has removed what was done; to make it anew would run it again
	case v.down.seen == absent && !v.up.held:
		return stepHold
	case v.down.seen == absent && v.up.seen != live:
		return stepAskUpstream // a cache that is behind may not bring back what was deleted
	case v.down.seen == absent:
		return stepCreate
	case v.down.upstreamUID == "":
		return stepForeign
	case v.down.upstreamUID != v.up.uid:
		return replaceFormer(v)
	case v.down.deleting:
		return stepNothing // made again when it is gone
	case !v.up.held:
		return stepHold
	case v.down.stuck:
		return replaceStuck(v)
	case !v.down.inSync:
		return stepApply
	default:
		return stepReport
	}
}

// replaceFormer is for the remains of an object that had the same name upstream: a
// claim that was kept, or what a finalizer taken by force left. It is not made into
// another object's counterpart, and not deleted but on request.
func replaceFormer(v view) step {
	switch {
	case v.up.seen != live:
		return stepAskUpstream // the cache may not have seen the new object yet
	case v.down.deleting:
		return stepNothing
	case !v.up.recreate, v.claim && !v.up.deleteData:
		return stepFormer
	default:
		return stepDelete
	}
}

func replaceStuck(v view) step {
	if !v.up.recreate || v.claim && !v.up.deleteData {
		return stepStuck
	}
	return stepDelete
}

// remove is for an object that upstream does not want in this cluster: it is gone, it
// is being deleted, or it was sent elsewhere.
func remove(v view) step {
	switch {
	case v.down.seen == unknown:
		return stepAskDownstream
	case v.down.seen == absent, v.down.upstreamUID == "":
		return release(v)
	case v.up.seen == cached && v.down.upstreamUID != v.up.uid:
		return stepAskUpstream // which of the two is older is not for a cache to say
	case v.claim && !v.mayDeleteData():
		return release(v)
	case v.down.deleting:
		return stepNothing // released when it is gone
	case v.kind == typeUnknown:
		return stepAskType
	case v.kind == typeEnding:
		return stepWithhold
	default:
		return stepDelete
	}
}

// mayDeleteData goes by upstream while it is there, and by what it last said after.
func (v view) mayDeleteData() bool {
	if v.up.seen == absent || v.up.uid != v.down.upstreamUID {
		return v.down.deleteData
	}
	return v.up.deleteData
}

func release(v view) step {
	switch {
	case v.up.seen == absent || !v.up.held:
		return stepNothing
	case v.down.seen == cached:
		return stepAskDownstream // what the cache still shows may be gone, or another
	default:
		return stepRelease
	}
}
