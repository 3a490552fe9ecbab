// Package sealed joins two ends that share a secret over a network that nobody
// trusts: TLS 1.3 in which each end shows a key that follows from the secret,
// and takes no other key from its peer. There are no names, no authorities and
// no times, so nothing is to be issued, renewed or looked up, and an address
// that has come to belong to somebody else is found out before a byte of ours
// is read.
package sealed
