// Package sealed connects two ends that share a secret over an untrusted network. It is
// TLS 1.3 in which each end presents a key derived from the secret and accepts only the
// other end's derived key. There are no names, authorities or expiry times, so nothing
// is issued or renewed. If an address now belongs to another process, the handshake
// fails before any data is sent.
package sealed
