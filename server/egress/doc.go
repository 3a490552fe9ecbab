// Package egress decides which connections leave a sandbox with
// NETWORK_MODE_PROXY, and carries them.
//
// A connection is asked for by a name or an address, and a port. Three things
// happen, in this order:
//
//   - Policy.Check compares the target with the rules. Rules come in layers, such
//     as template and sandbox, and every layer must allow the target.
//   - Dialer.Open resolves the name itself and checks each address immediately
//     before it connects. An address that is not public is refused unless a CIDR
//     rule of every layer allows it. What has been checked is what is connected.
//   - Conn.Relay looks at the first bytes of the program. A connection to a name
//     carries TLS for that name, HTTP for that name, or, on ports other than 80
//     and 443, another protocol. Then it copies both ways.
//
// Where the rules for a name have methods or paths, or the caller asks for it by
// Conn.Intercept, Relay reads and checks every request of HTTP, also within TLS,
// and refuses everything else. After an upgrade, such as to WebSocket, bytes pass
// as they are.
//
// A connection to an address has no name to compare, so the CIDR rule that
// allows the address allows every protocol on it.
//
// The package cannot see inside of TLS: a server that has several names on one
// address may answer requests for another of its names. It does not see TLS that
// begins later in a connection, as with STARTTLS.
package egress
