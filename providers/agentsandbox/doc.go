// Package agentsandbox runs sandboxes through kubernetes-sigs/agent-sandbox
// (API v1beta1): each is a SandboxClaim against a SandboxWarmPool, and a
// controller of the cluster makes the Sandbox and its pod, or hands out one
// that it has ready.
//
// The claim is the record: its name is the sandbox's, an annotation holds the
// spec, and spec.lifecycle.shutdownTime ends it where no server is left to do
// so. Nothing of it is only in a server's memory, so any number of servers may
// share a namespace.
//
// The pod's spec belongs to the operator's SandboxTemplate and knows nothing of
// Sandgate. The agent is put into its container through exec, ahead of time in
// the pods of a pool that is kept. An annotation of the pod says where it is.
// The controller replaces a pod that vanished by an empty one of the same name,
// and a kubelet restarts a container that ended: an incarnation is therefore
// derived from the pod's UID, the container's id and the agent's generation in
// it.
//
// The API's types are declared here, as far as the provider uses them. The
// official module would force its own versions of Kubernetes' libraries,
// telemetry and gRPC on this one, and objects are only ever patched, so that
// fields which are not known here stay as they are.
package agentsandbox
