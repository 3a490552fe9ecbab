// Package conformance holds the contracts of docs/contracts.md to a sandbox, as
// cases that anyone can run against a server: by `sandgate conformance`, or from
// Go tests.
//
// A [Case] belongs to one contract, and its name begins with the number:
// "C07_cut_mid_chunk_client_hop". It uses nothing but the public API, over real
// sockets, so it does not care which provider is behind it or who wrote the
// server. What it needs of the server (a memory limit, say) is asked by
// GetServerInfo; where that is not there, the case is skipped and says so.
//
// Some cases only use one sandbox ([SandboxCases]). They also run directly
// against an agent, without a server between: providers/providertest does that.
//
// All that a [Suite] makes carries a label and a lifetime, and Close deletes it.
package conformance
