package v1alpha1

// Labels and annotations that rik sets and reads.
const (
	// LabelWorkload is the name of the Workload to which an object belongs.
	LabelWorkload = "rik.dev/workload"
	// LabelRevision is the hash of the WorkloadRevision that an Instance runs.
	LabelRevision = "rik.dev/revision"
	// LabelTenant marks the namespace and the role bindings of a Tenant.
	LabelTenant = "rik.dev/tenant"
	// LabelHostname is a Node's name, as in Kubernetes. The controller sets it.
	LabelHostname = "kubernetes.io/hostname"
	// LabelArch and LabelOS are a Node's architecture and operating system.
	LabelArch = "kubernetes.io/arch"
	LabelOS   = "kubernetes.io/os"
	// LabelZone and LabelRegion are the usual topology keys.
	LabelZone   = "topology.kubernetes.io/zone"
	LabelRegion = "topology.kubernetes.io/region"
	// LabelRolePrefix and the name of a role together are the label of a Node's role.
	LabelRolePrefix = "node-role.kubernetes.io/"
	// AnnotationRestartedAt in a template starts a rollout of an otherwise unchanged template.
	AnnotationRestartedAt = "rik.dev/restartedAt"
	// AnnotationRollback is the number of the revision to which a rollback returns.
	AnnotationRollback = "rik.dev/rollback-to"
	// AnnotationCascade is orphan or foreground. The API server sets it on a Workload that is
	// being deleted, when the finalizer that requested this is removed. Kubernetes' garbage
	// collector does not know instances, and removes that finalizer at once.
	AnnotationCascade = "rik.dev/cascade"
	// AnnotationOrphaned marks objects that stayed after their Workload was deleted, because the
	// deletion requested it. No workload of the same name takes them over. Only the controller
	// sets it.
	AnnotationOrphaned = "rik.dev/orphaned"
	// AnnotationConfirmed on a Node is the id of the confirmation that an operator has given. See
	// NodeConfirmation.
	AnnotationConfirmed = "rik.dev/confirmed"
	// AnnotationConfirmedCertificate on a Node is the UID of another Node. That Node's
	// certificate is valid for this one too, because an operator has confirmed it.
	AnnotationConfirmedCertificate = "rik.dev/confirmed-certificate"
	// AnnotationUnconfirmedCertificate on a Node is the UID of another Node, of which the cluster
	// has no record. A node with that Node's certificate has connected, and the controller has
	// created this Node to show it. The controller sets it.
	AnnotationUnconfirmedCertificate = "rik.dev/unconfirmed-certificate"
	// AnnotationDeployment on a Workload is the name of the Deployment that created it. A new
	// Deployment of that name takes over a Workload that the earlier one left as an orphan.
	AnnotationDeployment = "rik.dev/deployment"
	// AnnotationLegacyID is the identifier that a v0 client gave a tenant.
	AnnotationLegacyID = "rik.dev/v0-id"
)

// FinalizerNode keeps an Instance until its node has confirmed that nothing of it is left.
const FinalizerNode = "rik.dev/node"

// FinalizerWorkload keeps a deleted Workload until its instances are deleted or orphaned, as the
// deletion requested. The API server sets it.
const FinalizerWorkload = "rik.dev/workload"

// The values of AnnotationCascade.
const (
	CascadeOrphan     = "orphan"
	CascadeForeground = "foreground"
)

// Taints that rik sets.
const (
	// TaintUnschedulable is added to a cordoned Node.
	TaintUnschedulable = "rik.dev/unschedulable"
	// TaintUnreachable is added to a Node that does not report.
	TaintUnreachable = "rik.dev/unreachable"
)

// Identities in certificates.
const (
	// GroupNodes is the organization of every node certificate.
	GroupNodes = "rik:nodes"
	// NodeUserPrefix and a Node's name together are the common name of a node's certificate.
	NodeUserPrefix = "rik:node:"
	// GroupAdministrators may do everything.
	GroupAdministrators = "system:masters"
	// UserController and UserScheduler are the components' own identities.
	UserController = "rik:controller"
	UserScheduler  = "rik:scheduler"
)

// The default ports of rik's components.
const (
	// PortAPI serves the API over TLS.
	PortAPI = 5000
	// PortWorkers is where the scheduler listens for riklets.
	PortWorkers = 4995
	// PortScheduler is where the scheduler listens for the controller.
	PortScheduler = 4996
	// PortNodes is where the controller listens for riklets.
	PortNodes = 4997
	// PortPeers is where a server listens for other servers, if it is one of several.
	PortPeers = 4998
)

// The default ranges of a cluster.
const (
	// DefaultClusterCIDR is the range of all instances.
	DefaultClusterCIDR = "10.62.0.0/16"
	// DefaultServiceCIDR is the range of all cluster IPs.
	DefaultServiceCIDR = "10.63.0.0/16"
)
