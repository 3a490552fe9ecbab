// Package kube holds what the providers on Kubernetes share: how to reach a
// cluster, how to run a command or hold a byte stream open in a container, how
// to put the agent into a container that was made without it, and what the
// cluster's errors and a pod's troubles mean.
//
//   - config.go: Load, the configuration of clients.
//   - exec.go: Executor.Run, one command with input, output and exit code.
//   - tunnel.go: Executor.Tunnel, a held-open exec stream as a net.Conn.
//   - inject.go, inject_ways.go: Inject, the agent's bytes into a running
//     container, started so that it outlives the exec.
//   - follow.go: Follow, one object through its changes.
//   - errors.go: Wrap and WrapCreate, from the API's errors to the sentinels of
//     providers.
//   - trouble.go: Watcher, why a pod will not become ready; Ended, how it ended;
//     Events, what the cluster said of it.
package kube
