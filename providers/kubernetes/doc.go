// Package kubernetes runs each sandbox as a pod of its own, made by the server.
//
// A sandbox is a ConfigMap with the sandbox's name, the record, and a pod. The
// record is created first and deleted last: two servers that create the same
// sandbox at once compete for its name. It holds the spec, the lifetimes and the
// pod's identity; its phase is the progress of a creation or deletion. The owner
// of that, one server, renews a heartbeat in the record. If the heartbeat stops,
// another server finishes the work, so a killed server leaves nothing behind. Pods
// have an owner reference to their record, for the cluster's garbage collector.
//
// A pod's name is the sandbox's, or, when it came from a pool, any name: pods
// are found through the record or by the label that carries the sandbox's name.
// The pod's UID is the incarnation, because no pod is ever started again.
package kubernetes
