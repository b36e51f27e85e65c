package splitter

import (
	"fmt"
	"strings"
	"time"

	workloadv1alpha1 "rik.dev/rik/api/workload/v1alpha1"
)

// Explanation records why each cluster has its number of replicas. It is data. String formats it.
type Explanation struct {
	Root     string
	Divide   workloadv1alpha1.Division
	Strategy workloadv1alpha1.Strategy
	// Whole is the number that was divided. The shares and Unplaced add up to it.
	Whole, Unplaced int32
	// Surge is the number of replicas that may exist above the whole. Moves is the number of
	// replicas that may still move in this interval. With -1 there is no limit.
	Surge, Moves int32
	Clusters     []Share
	// Reasons are the reasons that concern the whole root.
	Reasons []Reason
}

// Share is the result of a decision for one cluster.
type Share struct {
	Cluster  string
	Standing Standing
	// Weight is the weight by which the whole is divided among the open clusters.
	Weight uint64
	// Has is the current part of the cluster. Gets is its part after this step. Share is its part
	// in the end. Most is the number of replicas that can run there.
	Has, Gets, Share, Most int32
	Reasons                []Reason
}

// Standing determines whether a cluster gets, keeps or loses parts.
type Standing string

// The standings, from the best to the worst.
const (
	// Open clusters accept parts.
	Open Standing = "open"
	// Holding clusters keep what they have, and get no more.
	Holding Standing = "holding"
	// Out clusters lose what they have.
	Out Standing = "out"
)

// Code identifies a reason.
type Code string

// The codes of reasons. The comments describe the fields of [Reason] that each code uses.
const (
	ClusterGone       Code = "ClusterGone"
	ClusterLeaving    Code = "ClusterLeaving"
	NotSelected       Code = "NotSelected"
	NotTolerated      Code = "NotTolerated"    // Name: the taint
	CannotFence       Code = "CannotFence"     //
	Evicted           Code = "Evicted"         // At: when the eviction began
	EvictedLater      Code = "EvictedLater"    // At: when the eviction begins
	NotReady          Code = "NotReady"        // At: when it loses its parts
	NotReadyTooLong   Code = "NotReadyTooLong" // At: when it became not ready
	NoOtherCluster    Code = "NobodyElse"      //
	TypeNotServed     Code = "TypeNotServed"   //
	TypeGone          Code = "TypeGone"        // At: when it loses its parts
	TypeGoneTooLong   Code = "TypeGoneTooLong" // At: when the type disappeared
	SameCluster       Code = "SameCluster"     // Name: the other cluster
	Refused           Code = "RefusedHere"     // At: when the next attempt is
	RefusedEverywhere Code = "RefusedEverywhere"
	RefusedBefore     Code = "RefusedBefore" // At: when it refused
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
	Kept              Code = "Kept"            // Number: the parts
	Autoscaled        Code = "Autoscaled"      // Number: replicas that run
	LeafGoing         Code = "LeafGoing"       // Number: replicas that may still run
	WaitsForAbsence   Code = "WaitsForAbsence" // Number: replicas that may still run
	// Number: replicas; At: when the fence takes effect, zero if unknown
	WaitsForFence     Code = "WaitsForFence"
	WaitsForReady     Code = "WaitsForReady" // Number: replicas that are not ready
	WaitsForRoom      Code = "WaitsForRoom"  // Number: parts that wait
	WaitsForMoves     Code = "WaitsForMoves" // At: when the next interval begins
	NoClusters        Code = "NoRegisteredClusters"
	NothingTakesParts Code = "NoOpenCluster" // Number: unplaced replicas
)

// Reason is one link in the chain of reasons that leads to a number.
type Reason struct {
	Code       Code
	Number, Of int64
	Name       string
	At         time.Time
}

// texts contains the message for each code. %[1]d and %[2]d are the numbers, %[3]s is the name,
// and %[4]s is the time.
var texts = map[Code]string{
	ClusterGone:       "the cluster was removed",
	ClusterLeaving:    "the cluster is being removed",
	NotSelected:       "the policy does not select the cluster",
	NotTolerated:      "the taint %[3]s is not tolerated",
	CannotFence:       "the cluster cannot fence, which the root asks for",
	Evicted:           "its parts are evicted since %[4]s",
	EvictedLater:      "its parts are evicted from %[4]s on",
	NotReady:          "the cluster is not ready; it keeps its parts until %[4]s",
	NotReadyTooLong:   "the cluster has not been ready since %[4]s",
	NoOtherCluster:    "no other cluster takes its parts: it keeps them",
	TypeNotServed:     "objects of this type are not copied to the cluster",
	TypeGone:          "the cluster has stopped serving this type; it keeps its parts until %[4]s",
	TypeGoneTooLong:   "the cluster has not served this type since %[4]s",
	SameCluster:       "it is the same physical cluster as %[3]s",
	Refused:           "the cluster refuses the object, as its problem annotation says; its share is tried there again at %[4]s",
	RefusedEverywhere: "the cluster refuses the object, as its problem annotation says, and no other cluster takes it: it stays",
	RefusedBefore:     "the cluster refused the object at %[4]s; it is tried there again when it has to leave the cluster where it is",
	Unschedulable:     "the cluster is unschedulable",
	NoWeight:          "its weight is 0",
	DataHere:          "its data is here: it does not move automatically",
	DataElsewhere:     "the root's data is in another cluster",
	DataLeft:          "the root's data is in this cluster: delete the leaf to start without the data elsewhere",
	FinishedHere:      "it has finished here: it is neither moved nor run again",
	FinishedElsewhere: "it has finished: it does not run again in another cluster",
	FollowsElsewhere:  "no object that it refers to is in this cluster",
	Weighted:          "%[3]s: %[1]d of %[2]d",
	Grouped:           "it is in %[3]s",
	Kept:              "it keeps %[1]d",
	Autoscaled:        "an autoscaler sets the replicas: %[1]d now",
	LeafGoing:         "an earlier leaf is being deleted; %[1]d may still run",
	WaitsForAbsence:   "the cluster has not reported yet that the removed parts have stopped: %[1]d may run",
	WaitsForFence:     "%[1]d may run until the fence takes effect, at %[4]s",
	WaitsForReady:     "moves wait: %[1]d replicas are not ready",
	WaitsForRoom:      "%[1]d wait until others have stopped",
	WaitsForMoves:     "moves wait for the next interval, at %[4]s",
	NoClusters:        "there are no clusters",
	NothingTakesParts: "no cluster takes %[1]d of the whole",
}

// String returns the message for the reason.
func (r Reason) String() string {
	at := "a time that is not known"
	if !r.At.IsZero() {
		at = r.At.UTC().Format(time.RFC3339)
	}
	text := texts[r.Code]
	if !strings.Contains(text, "%") {
		return text
	}
	// Each placeholder has an index, so a text need not use all arguments.
	return strings.NewReplacer("%[1]d", fmt.Sprint(r.Number), "%[2]d", fmt.Sprint(r.Of), "%[3]s", r.Name, "%[4]s", at).Replace(text)
}

// String formats the explanation for users.
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

// explain builds the explanation of a decision.
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

// delays returns the reasons why some parts do not equal their shares yet.
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

// reasonsOf returns the chain of reasons for the number of a site.
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
