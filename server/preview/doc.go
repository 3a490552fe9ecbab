// Package preview serves HTTP for URLs of ports and files of sandboxes.
//
// A URL has a host name of its own for each incarnation of a sandbox and port, and a
// sealed, expiring token. The token is the whole permission: nothing is stored, and
// any server with the same secret serves the URL. Requests become calls of
// SandboxService in the name of the principal that created the URL.
//
// What is read before the token is checked is bounded: the headers, and nothing else.
// The answer to a request without a valid token does not depend on what exists.
package preview
