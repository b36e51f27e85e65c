package splitter

import (
	"fmt"
	"strings"
	"time"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// Explanation says why each cluster has what it has. It is data; String prints it.
type Explanation struct {
	Root     string
	Divide   workloadv1alpha1.Division
	Strategy workloadv1alpha1.Strategy
	// Whole is what was to be divided; the shares and Unplaced are as much.
	Whole, Unplaced int32
	// Surge is how many there may be above the whole, and Moves how many more may be
	// moved now; -1: as many as there are.
	Surge, Moves int32
	Clusters     []Share
	// Reasons are about the root.
	Reasons []Reason
}

// Share is what becomes of one cluster.
type Share struct {
	Cluster  string
	Standing Standing
	// Weight by which the whole is divided among the open clusters.
	Weight uint64
	// Has is its part now, Gets after this step, Share in the end, and Most how many
	// can run there.
	Has, Gets, Share, Most int32
	Reasons                []Reason
}

// Standing is what a cluster may have.
type Standing string

// The standings, from the best to the worst.
const (
	// Open clusters take parts.
	Open Standing = "open"
	// Holding clusters keep what they have, and take no more.
	Holding Standing = "holding"
	// Out are those that lose what they have.
	Out Standing = "out"
)

// Code names a reason.
type Code string

// The codes of reasons, with what belongs to each in a [Reason].
const (
	ClusterGone       Code = "ClusterGone"
	ClusterLeaving    Code = "ClusterLeaving"
	NotSelected       Code = "NotSelected"
	NotTolerated      Code = "NotTolerated"    // Name: the taint
	CannotFence       Code = "CannotFence"     //
	Evicted           Code = "Evicted"         // At: since when
	EvictedLater      Code = "EvictedLater"    // At: when
	NotReady          Code = "NotReady"        // At: until when it keeps its parts
	NotReadyTooLong   Code = "NotReadyTooLong" // At: since when it is not ready
	NobodyElse        Code = "NobodyElse"      //
	TypeNotServed     Code = "TypeNotServed"   //
	TypeGone          Code = "TypeGone"        // At: until when it keeps its parts
	TypeGoneTooLong   Code = "TypeGoneTooLong" // At: since when the type is gone
	SameCluster       Code = "SameCluster"     // Name: the other cluster
	Refused           Code = "RefusedHere"     // At: when it is tried again
	RefusedEverywhere Code = "RefusedEverywhere"
	RefusedBefore     Code = "RefusedBefore" // At: when
	Unschedulable     Code = "Unschedulable" //
	NoWeight          Code = "NoWeight"      //
	DataHere          Code = "DataHere"      //
	DataElsewhere     Code = "DataElsewhere" //
	DataLeft          Code = "DataLeft"
	FinishedHere      Code = "FinishedHere"
	FinishedElsewhere Code = "FinishedElsewhere"
	FollowsElsewhere  Code = "FollowsElsewhere"
	Weighted          Code = "Weighted"        // Number, Of: weight and sum; Name: strategy
	Grouped           Code = "Grouped"         // Name: the group
	Kept              Code = "Kept"            // Number
	Autoscaled        Code = "Autoscaled"      // Number: what runs
	LeafGoing         Code = "LeafGoing"       // Number: what may still run
	WaitsForAbsence   Code = "WaitsForAbsence" // Number: what may still run
	WaitsForFence     Code = "WaitsForFence"   // Number; At: when it holds, zero if not known
	WaitsForReady     Code = "WaitsForReady"   // Number: replicas that are not ready
	WaitsForRoom      Code = "WaitsForRoom"    // Number: parts that wait
	WaitsForMoves     Code = "WaitsForMoves"   // At: when the next interval begins
	NoClusters        Code = "NoRegisteredClusters"
	NothingTakesParts Code = "NoOpenCluster" // Number: unplaced
)

// Reason is one link in the chain that leads to a number.
type Reason struct {
	Code       Code
	Number, Of int64
	Name       string
	At         time.Time
}

// texts say what codes mean; %[1]d and %[2]d are the numbers, %[3]s the name, %[4]s the time.
var texts = map[Code]string{
	ClusterGone:       "the cluster was removed",
	ClusterLeaving:    "the cluster is being removed",
	NotSelected:       "the policy does not select the cluster",
	NotTolerated:      "the taint %[3]s is not tolerated",
	CannotFence:       "the cluster cannot fence, which the root asks for",
	Evicted:           "its parts have to leave since %[4]s",
	EvictedLater:      "its parts have to leave from %[4]s on",
	NotReady:          "the cluster is not ready; it keeps its parts until %[4]s",
	NotReadyTooLong:   "the cluster is not ready since %[4]s",
	NobodyElse:        "no other cluster takes its parts: it keeps them",
	TypeNotServed:     "objects of this type are not carried to the cluster",
	TypeGone:          "the cluster has stopped serving this type; it keeps its parts until %[4]s",
	TypeGoneTooLong:   "the cluster has not served this type since %[4]s",
	SameCluster:       "it is the same physical cluster as %[3]s",
	Refused:           "the cluster refuses the object, as its problem annotation says; its share is tried there again at %[4]s",
	RefusedEverywhere: "the cluster refuses the object, as its problem annotation says, and no other cluster takes it: it stays",
	RefusedBefore:     "the cluster refused the object at %[4]s; it is tried there again when it has to leave the cluster where it is",
	Unschedulable:     "the cluster is unschedulable",
	NoWeight:          "its weight is 0",
	DataHere:          "its data is here: it is not moved by itself",
	DataElsewhere:     "the root's data is in another cluster",
	DataLeft:          "the root's data is in this cluster: delete the leaf to start anew elsewhere",
	FinishedHere:      "it has finished here: it is neither moved nor run again",
	FinishedElsewhere: "it has finished: it does not run again in another cluster",
	FollowsElsewhere:  "nothing that it refers to is in this cluster",
	Weighted:          "%[3]s: %[1]d of %[2]d",
	Grouped:           "it is in %[3]s",
	Kept:              "it keeps %[1]d",
	Autoscaled:        "an autoscaler sets the replicas: %[1]d now",
	LeafGoing:         "an earlier leaf is being deleted; %[1]d may still run",
	WaitsForAbsence:   "it has not said yet that the parts that left have stopped: %[1]d may run",
	WaitsForFence:     "%[1]d may run until the fence holds, at %[4]s",
	WaitsForReady:     "moves wait: %[1]d replicas are not ready",
	WaitsForRoom:      "%[1]d wait until others have stopped",
	WaitsForMoves:     "moves wait for the next interval, at %[4]s",
	NoClusters:        "there are no clusters",
	NothingTakesParts: "no cluster takes %[1]d of the whole",
}

// String is the reason in words.
func (r Reason) String() string {
	at := "a time that is not known"
	if !r.At.IsZero() {
		at = r.At.UTC().Format(time.RFC3339)
	}
	text := texts[r.Code]
	if !strings.Contains(text, "%") {
		return text
	}
	// Every verb names its argument, so that those which are not used are no mistake.
	return strings.NewReplacer("%[1]d", fmt.Sprint(r.Number), "%[2]d", fmt.Sprint(r.Of), "%[3]s", r.Name, "%[4]s", at).Replace(text)
}

// String is what a person reads who asks why.
func (e Explanation) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d, divide %s", e.Root, e.Whole, e.Divide)
	if e.Divide == workloadv1alpha1.DivideReplicas {
		fmt.Fprintf(&b, ", strategy %s", e.Strategy)
	}
	if e.Unplaced > 0 {
		fmt.Fprintf(&b, ", %d unplaced", e.Unplaced)
	}
	b.WriteString("\n")
	for _, r := range e.Reasons {
		fmt.Fprintf(&b, "  %s\n", r)
	}
	for _, s := range e.Clusters {
		fmt.Fprintf(&b, "  %s: %d", s.Cluster, s.Share)
		if s.Has != s.Share {
			fmt.Fprintf(&b, " (has %d, next %d)", s.Has, s.Gets)
		}
		fmt.Fprintf(&b, ", %s", s.Standing)
		for i, r := range s.Reasons {
			fmt.Fprintf(&b, "%s%s", map[bool]string{true: ": ", false: "; "}[i == 0], r)
		}
		b.WriteString("\n")
	}
	return b.String()
}

// explain writes down how the numbers came about.
func (st *State) explain(whole int64, sites []*site, w *stepper, r Result) Explanation {
	e := Explanation{
		Root: st.Root.Name, Divide: st.Policy.divide, Strategy: st.Policy.strategy,
		Whole: int32(whole), Unplaced: r.Unplaced, Surge: int32(w.surge), Moves: -1,
		Clusters: make([]Share, 0, len(sites)),
	}
	if st.Policy.moves > 0 {
		e.Moves = int32(w.moves)
	}
	if len(st.Clusters) == 0 {
		e.Reasons = append(e.Reasons, Reason{Code: NoClusters})
	}
	if r.Unplaced > 0 {
		e.Reasons = append(e.Reasons, Reason{Code: NothingTakesParts, Number: int64(r.Unplaced)})
	}
	e.Reasons = append(e.Reasons, st.delays(w, r)...)
	var sum int64
	for _, s := range sites {
		if s.standing == Open {
			sum += int64(s.weight)
		}
	}
	for _, s := range sites {
		e.Clusters = append(e.Clusters, Share{
			Cluster: s.name, Standing: s.standing, Weight: s.weight,
			Has: int32(st.part(s.leaf)), Gets: int32(s.part), Share: int32(s.share), Most: int32(s.most),
			Reasons: st.reasonsOf(s, sum),
		})
	}
	return e
}

// delays are why not all parts are as they are to be yet.
func (st *State) delays(w *stepper, r Result) []Reason {
	var reasons []Reason
	moving := w.sum(deficit)
	if missing := w.shares() - w.parts(); missing > 0 {
		return append(reasons, Reason{Code: WaitsForRoom, Number: missing})
	}
	if w.moves == 0 && moving > 0 {
		reasons = append(reasons, Reason{Code: WaitsForMoves, At: r.Progress.Since.Add(st.Policy.interval)})
	}
	if missing := w.shares() + w.surged - w.sum((*site).readyParts); missing > 0 && w.sum(surplus) > 0 {
		reasons = append(reasons, Reason{Code: WaitsForReady, Number: missing})
	}
	return reasons
}

// reasonsOf is the chain of reasons for a site's number.
func (st *State) reasonsOf(s *site, sum int64) []Reason {
	reasons := s.reasons
	switch {
	case s.standing == Open && s.weight > 0 && st.Policy.divide != workloadv1alpha1.DivideEverywhere:
		if s.group != "" {
			reasons = append(reasons, Reason{Code: Grouped, Name: s.group})
		}
		reasons = append(reasons, Reason{Code: Weighted, Number: int64(s.weight), Of: sum, Name: string(st.Policy.strategy)})
	case s.standing == Holding:
		reasons = append(reasons, Reason{Code: Kept, Number: s.share})
	}
	switch l := s.leaf; {
	case l == nil:
	case l.Deleting:
		reasons = append(reasons, Reason{Code: LeafGoing, Number: l.most()})
	case l.Autoscaled:
		reasons = append(reasons, Reason{Code: Autoscaled, Number: int64(l.Replicas)})
	case s.lost && s.counts(st):
		reasons = append(reasons, Reason{Code: WaitsForFence, Number: l.most(), At: s.fence})
	case l.most() > s.part && !s.lost:
		reasons = append(reasons, Reason{Code: WaitsForAbsence, Number: l.most()})
	}
	return reasons
}
