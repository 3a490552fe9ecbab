package oci

import specs "github.com/opencontainers/runtime-spec/specs-go"

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

// JoinUserNamespace has a container join the user namespace at a path, with count ids
// from base on, and its first process keep capabilities.
func JoinUserNamespace(s *specs.Spec, path string, base, count uint32) {
	ids := []specs.LinuxIDMapping{{HostID: base, Size: count}}
	s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: specs.UserNamespace, Path: path})
	s.Linux.UIDMappings, s.Linux.GIDMappings = ids, ids
}
