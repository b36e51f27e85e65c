package v1alpha1

// Labels and annotations that rik sets and reads.
const (
	// LabelWorkload holds the name of the Workload that an object belongs to.
	LabelWorkload = "rik.dev/workload"
	// LabelRevision holds the hash of the WorkloadRevision an Instance runs.
	LabelRevision = "rik.dev/revision"
	// LabelTenant marks the namespace and role bindings made for a Tenant.
	LabelTenant = "rik.dev/tenant"
	// LabelHostname holds a Node's name, as in Kubernetes; set by the controller.
	LabelHostname = "kubernetes.io/hostname"
	// LabelArch and LabelOS hold a Node's architecture and operating system.
	LabelArch = "kubernetes.io/arch"
	LabelOS   = "kubernetes.io/os"
	// LabelZone and LabelRegion are the usual topology keys.
	LabelZone   = "topology.kubernetes.io/zone"
	LabelRegion = "topology.kubernetes.io/region"
	// LabelRolePrefix is followed by the name of a Node's role.
	LabelRolePrefix = "node-role.kubernetes.io/"
	// AnnotationRestartedAt is set in a template to roll it out again unchanged.
	AnnotationRestartedAt = "rik.dev/restartedAt"
	// AnnotationRollback holds the revision number that a rollback asks for.
	AnnotationRollback = "rik.dev/rollback-to"
	// AnnotationCascade is set by the API server on a Workload that is being
	// deleted, to orphan or foreground, when the finalizer that asked for that is
	// taken off: Kubernetes' garbage collector, which knows nothing of instances,
	// does so at once.
	AnnotationCascade = "rik.dev/cascade"
	// AnnotationOrphaned marks what outlived its Workload because the deletion
	// asked for that: no workload of the same name takes it over. Only the
	// controller sets it.
	AnnotationOrphaned = "rik.dev/orphaned"
	// AnnotationConfirmed on a Node holds the id of the confirmation that an operator has
	// given; see NodeConfirmation.
	AnnotationConfirmed = "rik.dev/confirmed"
	// AnnotationConfirmedCertificate on a Node holds the UID of another Node whose
	// certificate counts for this one too, because an operator has confirmed it.
	AnnotationConfirmedCertificate = "rik.dev/confirmed-certificate"
	// AnnotationUnconfirmedCertificate on a Node holds the UID of another Node, of which the
	// cluster has no record: a node that has its certificate has come, and this Node was
	// made to show it. The controller sets it.
	AnnotationUnconfirmedCertificate = "rik.dev/unconfirmed-certificate"
	// AnnotationDeployment on a Workload is the name of the Deployment that made it. A new
	// Deployment of that name takes over a Workload that the earlier one left as an orphan.
	AnnotationDeployment = "rik.dev/deployment"
	// AnnotationLegacyID holds the identifier that a v0 client gave a tenant.
	AnnotationLegacyID = "rik.dev/v0-id"
)

// FinalizerNode holds an Instance until its node confirmed that nothing of it
// is left.
const FinalizerNode = "rik.dev/node"

// FinalizerWorkload holds a Workload until its end has been passed on to its
// instances in the way that the deletion asked for. The API server puts it on.
const FinalizerWorkload = "rik.dev/workload"

// The values of AnnotationCascade.
const (
	CascadeOrphan     = "orphan"
	CascadeForeground = "foreground"
)

// Taints that rik itself sets.
const (
	// TaintUnschedulable is added to a cordoned Node.
	TaintUnschedulable = "rik.dev/unschedulable"
	// TaintUnreachable is added to a Node that is not heard of.
	TaintUnreachable = "rik.dev/unreachable"
)

// Identities that certificates carry.
const (
	// GroupNodes is the organization of every node certificate.
	GroupNodes = "rik:nodes"
	// NodeUserPrefix is followed by a Node's name in a certificate's common name.
	NodeUserPrefix = "rik:node:"
	// GroupAdministrators may do everything.
	GroupAdministrators = "system:masters"
	// UserController and UserScheduler are the components' own identities.
	UserController = "rik:controller"
	UserScheduler  = "rik:scheduler"
)

// The ports that rik's components listen on unless told otherwise.
const (
	// PortAPI serves the API over TLS.
	PortAPI = 5000
	// PortWorkers is where the scheduler awaits riklets.
	PortWorkers = 4995
	// PortScheduler is where the scheduler awaits the controller.
	PortScheduler = 4996
	// PortNodes is where the controller awaits riklets.
	PortNodes = 4997
)
