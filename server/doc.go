// Package server is the concrete front of Sandgate: one gRPC service that
// authenticates callers, decides policy, keeps lifetimes, and routes every
// call to the agent inside the right sandbox over Provider.Dial.
//
// It programs against package providers only and never knows which substrate
// is behind it. It does not trust agents either: what comes up a pipe is
// checked for order, size and a single end before it is passed on, and the
// payload is never decoded.
package server
