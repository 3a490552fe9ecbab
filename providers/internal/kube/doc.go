// Package kube is shared by the providers on Kubernetes: the configuration of
// clients, commands and byte streams in containers, connections to agents, the
// installation of the agent into a running container, and the meaning of the
// cluster's errors and of a pod's status.
//
//   - config.go: Load, the configuration of clients.
//   - exec.go: Executor.Run, one command with input, output and exit code.
//   - tunnel.go: Executor.Tunnel, an open exec stream as a net.Conn.
//   - transport.go, agents.go: Agents, connections to agents by exec or at the
//     pod's address (podip.go, podconns.go).
//   - inject.go, installers.go: Injector, which writes the agent into a running
//     container and starts it so that it outlives the exec.
//   - follow.go: Follow, a watch on one object.
//   - errors.go: Wrap and WrapCreate, which map errors of the API server to the
//     sentinels of providers.
//   - diagnosis.go: Diagnosis, why a pod will not become ready; Ended, how it
//     ended; Events, the cluster's warnings about it.
package kube
