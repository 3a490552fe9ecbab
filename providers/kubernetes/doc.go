// Package kubernetes runs each sandbox as a pod of its own, made by the server.
//
// A sandbox is a ConfigMap with the sandbox's name, the record, and a pod. The
// record is made first and goes last: its name is what two servers that create
// the same sandbox at once contend for, it holds the spec, lifetimes and the
// pod's identity, and its phase says how far a creation or deletion has come.
// Whoever creates or deletes renews a beat in the record; one that has stopped
// beating is finished by whoever comes next, so a killed server leaves nothing
// stuck. Pods belong to their record, so that the cluster's garbage collector
// removes what nobody else does.
//
// A pod's name is the sandbox's, or, when it came from a pool, any name: pods
// are found through the record or by the label that carries the sandbox's name.
// The pod's UID is the incarnation, because no pod is ever started again.
package kubernetes
