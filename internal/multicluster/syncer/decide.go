package syncer

import (
	"k8s.io/apimachinery/pkg/types"
)

// presence is what is known about the existence of an object on one side.
type presence int

const (
	// unknown: the cache does not have the object. That proves nothing.
	unknown presence = iota
	// cached: the cache has the object. It may be out of date.
	cached
	// live: the server was asked in this pass and has the object.
	live
	// absent: the server was asked in this pass and does not have the object.
	absent
)

// upstreamView is the state of the object upstream, as far as decide uses it.
type upstreamView struct {
	seen presence
	uid  types.UID
	// deleting: the object is being deleted, which cannot be undone.
	deleting bool
	// targeted: its labels send it to this cluster.
	targeted bool
	// held: it has the finalizer of this syncer.
	held bool
	// recreate: it asks for a new object if the existing one cannot be changed.
	recreate bool
	// deleteData: it allows the deletion of data.
	deleteData bool
	// finished: its work is finished, according to the last status of this cluster.
	finished bool
}

// downstreamView is the state of the object downstream, as far as decide uses it.
type downstreamView struct {
	seen presence
	// upstreamUID is the UID in its annotation. If it is empty, this syncer did not make the
	// object.
	upstreamUID types.UID
	deleting    bool
	// inSync: it has the desired content.
	inSync bool
	// stuck: the server answered that only a new object can have the desired content.
	stuck bool
	// deleteData: it allows the deletion of data.
	deleteData bool
}

// typeView is what is known about the type upstream.
type typeView int

const (
	typeUnknown typeView = iota
	// typeServed: the server was asked in this pass. The type is not being removed.
	typeServed
	// typeEnding: the type is being removed, or was removed.
	typeEnding
)

// view is the complete input of decide.
type view struct {
	// excluded: the object must not be copied.
	excluded bool
	// claim: deleting the object deletes data.
	claim bool
	up    upstreamView
	down  downstreamView
	kind  typeView
}

// step is the next action for one object.
type step int

const (
	// stepNothing: nothing is left to do now.
	stepNothing step = iota
	// stepAskUpstream, stepAskDownstream, stepAskType: ask the server, then decide again.
	stepAskUpstream
	stepAskDownstream
	stepAskType
	// stepHold: add the finalizer to the object upstream.
	stepHold
	// stepCreate: create the object downstream.
	stepCreate
	// stepApply: update the object of this syncer downstream to the desired content.
	stepApply
	// stepReport: both are in sync, so copy the status upstream.
	stepReport
	// stepDelete: delete the object downstream, with the UID of the object that was seen.
	stepDelete
	// stepRelease: remove the finalizer from the object upstream.
	stepRelease
	// stepForeign: an object that this syncer did not make has the name downstream.
	stepForeign
	// stepFormer: the rest of a former object has the name downstream.
	stepFormer
	// stepStuck: an immutable field has changed, and the user did not ask for a new object.
	stepStuck
	// stepWithhold: delete nothing, because the type upstream is being removed.
	stepWithhold
)

// decide returns the next step. The caller executes it. Unless the step is final, the caller then
// decides again with the new information.
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
		return stepAskUpstream // an outdated cache must not cause a deletion
	default:
		return remove(v)
	}
}

// keep decides for an object that upstream wants in this cluster.
func keep(v view) step {
	switch {
	case v.down.seen == unknown:
		return stepAskDownstream
	case v.down.seen == absent && v.up.finished:
		// the cluster has removed finished work: a new object would run it again
		return stepNothing
	case v.down.seen == absent && !v.up.held:
		return stepHold
	case v.down.seen == absent && v.up.seen != live:
		return stepAskUpstream // an outdated cache must not restore a deleted object
	case v.down.seen == absent:
		return stepCreate
	case v.down.upstreamUID == "":
		return stepForeign
	case v.down.upstreamUID != v.up.uid:
		return replaceFormer(v)
	case v.down.deleting:
		return stepNothing // the syncer creates it again when it is gone
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

// replaceFormer decides about the rest of a former object with the same name upstream. It is a
// claim that was kept, or an object whose finalizer upstream was removed by force. It does not
// become the counterpart of the new object. It is deleted only on request.
func replaceFormer(v view) step {
	switch {
	case v.up.seen != live:
		return stepAskUpstream // the cache may not contain the new object yet
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

// remove decides for an object that upstream does not want in this cluster. It is gone, is being
// deleted, or was sent to another cluster.
func remove(v view) step {
	switch {
	case v.down.seen == unknown:
		return stepAskDownstream
	case v.down.seen == absent, v.down.upstreamUID == "":
		return release(v)
	case v.up.seen == cached && v.down.upstreamUID != v.up.uid:
		return stepAskUpstream // a cache cannot decide which of the two is older
	case v.claim && !v.mayDeleteData():
		return release(v)
	case v.down.deleting:
		return stepNothing // the finalizer is removed when it is gone
	case v.kind == typeUnknown:
		return stepAskType
	case v.kind == typeEnding:
		return stepWithhold
	default:
		return stepDelete
	}
}

// mayDeleteData uses the value upstream while that object exists, and the last copied value after
// that.
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
		return stepAskDownstream // the object in the cache may be gone, or be another one
	default:
		return stepRelease
	}
}
