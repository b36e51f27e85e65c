package validation

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"rik.dev/rik/internal/apiserver/apis/rik"
	"rik.dev/rik/internal/apiserver/apis/rik/reference"
)

func containers(at *field.Path, t *rik.InstanceTemplate) field.ErrorList {
	errs := atMost(at.Child("containers"), len(t.Containers)+len(t.InitContainers), MaxContainers)
	if len(t.Containers) == 0 {
		errs = append(errs, field.Required(at.Child("containers"), "kind Pod needs at least one container"))
	}
	inVolumes := map[string]bool{}
	for i := range t.Volumes {
		inVolumes[t.Volumes[i].Name] = true
	}
	names, served, portNames := seen{}, seen{}, seen{}
	for i := range t.Containers {
		c, here := &t.Containers[i], at.Child("containers").Index(i)
		errs = append(errs, names.add(here.Child("name"), c.Name)...)
		errs = append(errs, container(here, c, inVolumes)...)
		errs = append(errs, ports(here.Child("ports"), c.Ports, t.HostNetwork, served, portNames)...)
		errs = append(errs, probes(here, c)...)
	}
	for i := range t.InitContainers {
		c, here := &t.InitContainers[i], at.Child("initContainers").Index(i)
		errs = append(errs, names.add(here.Child("name"), c.Name)...)
		errs = append(errs, container(here, c, inVolumes)...)
		const why = "init containers cannot serve ports, because they end before the containers start"
		errs = append(errs, unsupported(here.Child("ports"), len(c.Ports) > 0, why)...)
		errs = append(errs, unsupported(here.Child("livenessProbe"), c.LivenessProbe != nil, why)...)
		errs = append(errs, unsupported(here.Child("readinessProbe"), c.ReadinessProbe != nil, why)...)
		errs = append(errs, unsupported(here.Child("startupProbe"), c.StartupProbe != nil, why)...)
	}
	return errs
}

// container validates the fields that init containers and other containers have in common.
func container(at *field.Path, c *rik.Container, inVolumes map[string]bool) field.ErrorList {
	errs := label(at.Child("name"), c.Name)
	errs = append(errs, image(at.Child("image"), c.Image)...)
	errs = append(errs, among(at.Child("imagePullPolicy"), c.ImagePullPolicy, rik.PullIfNotPresent, rik.PullAlways, rik.PullNever)...)
	errs = append(errs, command(at, c.Command, c.Args)...)
	if c.WorkingDir != "" {
		errs = append(errs, absolutePath(at.Child("workingDir"), c.WorkingDir)...)
	}
	errs = append(errs, user(at.Child("user"), c.User)...)
	errs = append(errs, environment(at.Child("env"), c.Env)...)
	errs = append(errs, environmentFrom(at.Child("envFrom"), c.EnvFrom)...)
	errs = append(errs, resources(at.Child("resources"), &c.Resources)...)
	errs = append(errs, volumeMounts(at.Child("volumeMounts"), c.VolumeMounts, inVolumes)...)
	return append(errs, security(at.Child("security"), c.Security)...)
}

func image(at *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	if len(value) > reference.MaxLength {
		return field.ErrorList{field.TooLong(at, "", reference.MaxLength)}
	}
	if _, err := reference.Parse(value); err != nil {
		return field.ErrorList{field.Invalid(at, value, err.Error())}
	}
	return nil
}

// command validates a command and its arguments. The kernel accepts no NUL, and limits the total
// length.
func command(at *field.Path, commands, args []string) field.ErrorList {
	var errs field.ErrorList
	total := 0
	for name, list := range map[string][]string{"command": commands, "args": args} {
		for i, word := range list {
			errs = append(errs, plain(at.Child(name).Index(i), word)...)
			if len(word) > MaxWordBytes {
				errs = append(errs, field.TooLong(at.Child(name).Index(i), "", MaxWordBytes))
			}
			total += len(word) + 1
		}
	}
	if len(commands) > 0 && commands[0] == "" {
		errs = append(errs, field.Required(at.Child("command").Index(0), "must contain the program to run"))
	}
	if total > MaxTextBytes {
		errs = append(errs, field.TooLong(at.Child("args"), "", MaxTextBytes))
	}
	return errs
}

// fieldRefs lists the fields of an instance that a variable can have as its value.
var fieldRefs = []string{
	"metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "status.address", "status.hostAddress",
}

func environment(at *field.Path, env []rik.EnvVar) field.ErrorList {
	errs := atMost(at, len(env), MaxEnv)
	total := 0
	unique := seen{}
	for i := range env {
		e, here := &env[i], at.Index(i)
		if e.Name == "" {
			errs = append(errs, field.Required(here.Child("name"), ""))
		} else {
			errs = append(errs, messages(here.Child("name"), e.Name, validation.IsEnvVarName(e.Name))...)
			errs = append(errs, unique.add(here.Child("name"), e.Name)...)
		}
		errs = append(errs, plain(here.Child("value"), e.Value)...)
		if room := MaxWordBytes - len(e.Name) - 1; len(e.Value) > room {
			errs = append(errs, field.TooLong(here.Child("value"), "", max(room, 0)))
		}
		total += len(e.Name) + len(e.Value) + 2
		if e.ValueFrom != nil {
			errs = append(errs, unsupported(here.Child("valueFrom"), e.Value != "", "must not be set together with value")...)
			errs = append(errs, valueFrom(here.Child("valueFrom"), e.ValueFrom)...)
		}
	}
	if total > MaxTextBytes {
		errs = append(errs, field.TooLong(at, "", MaxTextBytes))
	}
	return errs
}

func valueFrom(at *field.Path, s *rik.EnvVarSource) field.ErrorList {
	var errs field.ErrorList
	sources := 0
	for name, ref := range map[string]*rik.KeyRef{"configMapKeyRef": s.ConfigMapKeyRef, "secretKeyRef": s.SecretKeyRef} {
		if ref == nil {
			continue
		}
		sources++
		errs = append(errs, subdomain(at.Child(name, "name"), ref.Name)...)
		errs = append(errs, key(at.Child(name, "key"), ref.Key)...)
	}
	if s.FieldRef != "" {
		sources++
		errs = append(errs, among(at.Child("fieldRef"), s.FieldRef, fieldRefs...)...)
	}
	if sources != 1 {
		errs = append(errs, field.Invalid(at, sources, "exactly one of configMapKeyRef, secretKeyRef and fieldRef must be set"))
	}
	return errs
}

func key(at *field.Path, value string) field.ErrorList {
	if value == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	return messages(at, value, validation.IsConfigMapKey(value))
}

func environmentFrom(at *field.Path, from []rik.EnvFromSource) field.ErrorList {
	errs := atMost(at, len(from), MaxEnvFrom)
	for i := range from {
		f, here := &from[i], at.Index(i)
		if f.Prefix != "" {
			errs = append(errs, messages(here.Child("prefix"), f.Prefix, validation.IsEnvVarName(f.Prefix))...)
		}
		switch {
		case (f.ConfigMap == "") == (f.Secret == ""):
			errs = append(errs, field.Invalid(here, f.ConfigMap+f.Secret, "exactly one of configMap and secret must be set"))
		case f.ConfigMap != "":
			errs = append(errs, subdomain(here.Child("configMap"), f.ConfigMap)...)
		default:
			errs = append(errs, subdomain(here.Child("secret"), f.Secret)...)
		}
	}
	return errs
}

// ports validates the ports of one container. All containers of an instance share a network, so
// they also share the used ports (served) and the used names.
func ports(at *field.Path, list []rik.Port, hostNetwork bool, served, names seen) field.ErrorList {
	errs := atMost(at, len(list), MaxPorts)
	for i := range list {
		p, here := &list[i], at.Index(i)
		errs = append(errs, port(here, p, hostNetwork)...)
		errs = append(errs, served.add(here.Child("port"), fmt.Sprintf("%d/%s", p.Port, p.Protocol))...)
		if p.Name != "" {
			errs = append(errs, names.add(here.Child("name"), p.Name)...)
		}
	}
	return errs
}

func port(at *field.Path, p *rik.Port, hostNetwork bool) field.ErrorList {
	errs := messages(at.Child("port"), p.Port, validation.IsValidPortNum(int(p.Port)))
	errs = append(errs, messages(at.Child("targetPort"), p.TargetPort, validation.IsValidPortNum(int(p.TargetPort)))...)
	errs = append(errs, among(at.Child("protocol"), p.Protocol, rik.ProtocolTCP, rik.ProtocolUDP, rik.ProtocolSCTP)...)
	errs = append(errs, among(at.Child("type"), p.Type, rik.PortClusterIP, rik.PortNodePort, rik.PortLoadBalancer)...)
	if p.Name != "" {
		errs = append(errs, label(at.Child("name"), p.Name)...)
	}
	if hostNetwork && p.Port != p.TargetPort {
		errs = append(errs, field.Invalid(at.Child("targetPort"), p.TargetPort, "must be the same as port with hostNetwork, because the process listens on the node itself"))
	}
	return errs
}

func security(at *field.Path, s *rik.Security) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := capabilities(at.Child("addCapabilities"), s.AddCapabilities, false)
	errs = append(errs, capabilities(at.Child("dropCapabilities"), s.DropCapabilities, true)...)
	if s.Privileged {
		const why = "has no effect together with privileged"
		errs = append(errs, unsupported(at.Child("addCapabilities"), len(s.AddCapabilities) > 0, why)...)
		errs = append(errs, unsupported(at.Child("dropCapabilities"), len(s.DropCapabilities) > 0, why)...)
	}
	return errs
}

func capabilities(at *field.Path, list []string, all bool) field.ErrorList {
	errs := atMost(at, len(list), len(knownCapabilities))
	unique := seen{}
	for i, name := range list {
		if !knownCapabilities[name] && (name != "ALL" || !all) {
			errs = append(errs, field.Invalid(at.Index(i), name, `is not a capability of Linux: write the name without "CAP_", such as NET_ADMIN`))
		}
		errs = append(errs, unique.add(at.Index(i), name)...)
	}
	return errs
}

// knownCapabilities are the capabilities of capabilities(7), Linux 6.18.
var knownCapabilities = map[string]bool{
	"AUDIT_CONTROL": true, "AUDIT_READ": true, "AUDIT_WRITE": true, "BLOCK_SUSPEND": true, "BPF": true,
	"CHECKPOINT_RESTORE": true, "CHOWN": true, "DAC_OVERRIDE": true, "DAC_READ_SEARCH": true, "FOWNER": true,
	"FSETID": true, "IPC_LOCK": true, "IPC_OWNER": true, "KILL": true, "LEASE": true, "LINUX_IMMUTABLE": true,
	"MAC_ADMIN": true, "MAC_OVERRIDE": true, "MKNOD": true, "NET_ADMIN": true, "NET_BIND_SERVICE": true,
	"NET_BROADCAST": true, "NET_RAW": true, "PERFMON": true, "SETFCAP": true, "SETGID": true, "SETPCAP": true,
	"SETUID": true, "SYSLOG": true, "SYS_ADMIN": true, "SYS_BOOT": true, "SYS_CHROOT": true, "SYS_MODULE": true,
	"SYS_NICE": true, "SYS_PACCT": true, "SYS_PTRACE": true, "SYS_RAWIO": true, "SYS_RESOURCE": true,
	"SYS_TIME": true, "SYS_TTY_CONFIG": true, "WAKE_ALARM": true,
}
