package kubernetes

import (
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func (p *plan) ownVolumes() []corev1.Volume {
	disk := &corev1.EmptyDirVolumeSource{Medium: p.options.DiskMedium}
	if bytes := p.spec.Resources.DiskBytes; bytes > 0 {
		disk.SizeLimit = resource.NewQuantity(bytes, resource.BinarySI)
	}
	out := []corev1.Volume{
		{Name: agentVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{
			SizeLimit: resource.NewQuantity(agentVolumeSize, resource.BinarySI),
		}}},
		{Name: diskVolume, VolumeSource: corev1.VolumeSource{EmptyDir: disk}},
	}
	for _, c := range p.options.ClaimTemplates {
		v := corev1.Volume{Name: c.Name}
		if c.Retain {
			v.PersistentVolumeClaim = &corev1.PersistentVolumeClaimVolumeSource{ClaimName: p.claimName(c)}
		} else {
			// The cluster makes the claim and removes it with the pod.
			v.Ephemeral = &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{managedBy: managedByValue}}, Spec: c.spec(),
			}}
		}
		out = append(out, v)
	}
	return out
}

// claimName is the claim of a volume that outlives the sandbox.
func (p *plan) claimName(c claimTemplate) string { return p.pod + "-" + c.Name }

func (c claimTemplate) spec() corev1.PersistentVolumeClaimSpec {
	modes := c.AccessModes
	if len(modes) == 0 {
		modes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	}
	return corev1.PersistentVolumeClaimSpec{
		AccessModes: modes, StorageClassName: c.StorageClass,
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: c.Storage}},
	}
}

// mounts are those of the sandbox's container. What the template mounts goes
// before the places of the same path.
func (p *plan) mounts() []corev1.VolumeMount {
	out := []corev1.VolumeMount{{Name: agentVolume, MountPath: agentDir, ReadOnly: true}}
	for _, c := range p.options.ClaimTemplates {
		out = append(out, corev1.VolumeMount{Name: c.Name, MountPath: path.Clean(c.MountPath)})
	}
	out = append(out, p.options.VolumeMounts...)
	taken := func(at string) bool {
		return slices.ContainsFunc(out, func(m corev1.VolumeMount) bool { return path.Clean(m.MountPath) == at })
	}
	add := func(name, at string) {
		if !taken(at) {
			out = append(out, corev1.VolumeMount{Name: diskVolume, SubPath: name, MountPath: at})
		}
	}
	for _, pl := range places {
		add(pl.name, pl.at)
	}
	for _, at := range p.options.WritablePaths {
		at = path.Clean(at)
		add("extra/"+strings.ReplaceAll(strings.Trim(at, "/"), "/", "_"), at)
	}
	// A working directory in a writable place is made by mounting it.
	for _, pl := range places {
		if rest, below := strings.CutPrefix(p.workdir(), pl.at+"/"); below && !p.mountedOver(pl.at) {
			add(path.Join(pl.name, rest), p.workdir())
		}
	}
	return out
}

// mountedOver reports whether the template has its own volume at a place.
func (p *plan) mountedOver(at string) bool {
	return slices.ContainsFunc(p.options.ClaimTemplates, func(c claimTemplate) bool { return path.Clean(c.MountPath) == at }) ||
		slices.ContainsFunc(p.options.VolumeMounts, func(m corev1.VolumeMount) bool { return path.Clean(m.MountPath) == at })
}
