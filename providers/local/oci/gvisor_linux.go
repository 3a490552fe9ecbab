package oci

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	runc "github.com/containerd/go-runc"
)

// gvisorFlags are runsc's flags, which go before its subcommand.
func gvisorFlags(network string) []string {
	return []string{
		"--platform=systrap",
		"--network=" + network,
		// The seccomp profile also applies inside, as on the host's kernel.
		"--oci-seccomp",
		// Writable files are on the sandbox's own disk already.
		"--overlay2=none",
	}
}

// gvisorMiddle is between a container's name and its sandbox's, here the same, in
// the names of runsc's files.
const gvisorMiddle = "_sandbox:"

func gvisorContainer(file string) (string, bool) {
	id, rest, ok := strings.Cut(file, gvisorMiddle)
	return id, ok && strings.HasPrefix(rest, id+".")
}

// removeGVisor deletes a container whose processes are gone, or that was half
// made. A killed runsc may have written no complete state and then can't delete
// the container; only its files are left.
func (r *Runtime) removeGVisor(ctx context.Context, id string) error {
	state := filepath.Join(r.root, id+gvisorMiddle+id+".state")
	if data, err := os.ReadFile(state); err == nil && json.Valid(data) {
		if err := r.cli(noNetwork).Delete(ctx, id, &runc.DeleteOpts{Force: true}); err != nil && fileExists(state) {
			return fmt.Errorf("%s delete: %w", r.Name, err)
		}
	}
	var errs []error
	for _, file := range []string{state, strings.TrimSuffix(state, "state") + "lock", filepath.Join(r.root, "runsc-"+id+".sock")} {
		if err := os.Remove(file); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// gvisorVersion returns "" for a build without a version.
func gvisorVersion(ctx context.Context, command string) string {
	out, err := exec.CommandContext(ctx, command, "--version").Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	v, _ := strings.CutPrefix(line, "runsc version ")
	if v == "VERSION_MISSING" {
		return ""
	}
	return v
}

// GVisorTasks returns the host's limit for a sandbox with this limit of
// processes, which gVisor itself enforces. The host counts the threads of
// gVisor's kernel and the processes that stand for those inside, about three
// for each. If the host refuses one, gVisor ends the sandbox, so the limit is
// generous.
func GVisorTasks(processes int64) int64 { return 16*processes + 1024 }

// Helper finds, among a container's processes, the one that runsc leaves to
// this process beside the first. It exits with the first and must be reaped.
// All others are in the first's pid namespace.
func Helper(members []int, first int) Process {
	for _, pid := range members {
		stat, err := readStat(pid)
		if err != nil || pid == first || stat.parent != os.Getpid() {
			continue
		}
		if found, err := FindProcess(pid); err == nil {
			return found
		}
	}
	return Process{}
}
