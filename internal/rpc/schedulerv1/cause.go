// Package schedulerv1 is what the scheduler speaks with controllers and nodes. All but
// this file is generated from its description in proto.
package schedulerv1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CauseUnavailable is the cause in a Status with which a controller answers that it
// reaches no scheduler.
const CauseUnavailable metav1.CauseType = "SchedulerUnavailable"
