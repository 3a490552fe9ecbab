// Package conformance tests the contracts of docs/contracts.md, as cases that run
// against any server: by `sandgate conformance`, or from Go tests.
//
// A [Case] belongs to one contract, and its name begins with the number:
// "C07_cut_mid_chunk_client_hop". It uses nothing but the public API, over real
// sockets, so it works with every provider and every implementation of the server.
// GetServerInfo shows whether the server has what a case needs, such as a memory
// limit; if not, the case is skipped with the reason.
//
// Cases that use a single sandbox ([SandboxCases]) also run directly against an
// agent, without a server: providers/providertest does that.
//
// Each sandbox of a [Suite] has a label and a lifetime, and Close deletes it.
package conformance
