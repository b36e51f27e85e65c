// Package schedulerv1 is the protocol between the scheduler, controllers and nodes. All files
// except this one are generated from proto.
package schedulerv1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CauseUnavailable is the cause in the Status that a controller returns if it cannot reach a
// scheduler.
const CauseUnavailable metav1.CauseType = "SchedulerUnavailable"
