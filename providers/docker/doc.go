// Package docker runs sandboxes as containers of a Docker daemon, or of a program
// with the same API.
//
// The first process of a container is the agent. It comes from a prepared image: the
// sandbox's image with one layer more, which holds the agent and the writable
// directories. Those are volumes, so they survive a suspension.
//
// The state directory holds a record per sandbox, since Docker cannot change the
// labels of a container. A lock per name makes the steps of two servers exclude one
// another.
package docker
