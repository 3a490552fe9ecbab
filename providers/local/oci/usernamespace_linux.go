package oci

import (
	"context"
	"syscall"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// RootCapabilities are what root in a sandbox needs to install packages, and nothing
// more. In a user namespace they reach only files and processes of its ids.
var RootCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER",
	// Directories keep their set-group-id bit when their group changes.
	"CAP_FSETID",
	// apt fetches as a user of its own.
	"CAP_SETUID", "CAP_SETGID",
	// The agent ends commands, whatever their user is.
	"CAP_KILL",
}

// JoinUserNamespace has a container join the user namespace at a path, whose ids are
// mapped so. Runtimes with idmapped mounts read that from the path, and warn of both.
func (r *Runtime) JoinUserNamespace(s *specs.Spec, path string, uids, gids []syscall.SysProcIDMap) {
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
	if !r.MapsMounts {
		s.Linux.UIDMappings, s.Linux.GIDMappings = idMappings(uids), idMappings(gids)
	}
}

func idMappings(ids []syscall.SysProcIDMap) []specs.LinuxIDMapping {
	out := make([]specs.LinuxIDMapping, len(ids))
	for i, id := range ids {
		out[i] = specs.LinuxIDMapping{ContainerID: uint32(id.ContainerID), HostID: uint32(id.HostID), Size: uint32(id.Size)}
	}
	return out
}

// FindFeatures sets MapsMounts.
func (r *Runtime) FindFeatures(ctx context.Context) {
	ctx, cancel := context.WithTimeoutCause(ctx, runtimeTimeout, errSlowRuntime)
	defer cancel()
	f, err := r.cli(noNetwork).Features(ctx)
	if err != nil || f.Linux == nil || f.Linux.MountExtensions == nil || f.Linux.MountExtensions.IDMap == nil {
		return
	}
	enabled := f.Linux.MountExtensions.IDMap.Enabled
	r.MapsMounts = enabled != nil && *enabled
}
