// Package agent is the server of AgentService, which runs inside a sandbox. It
// accepts connections and answers Hello, GetActivity and Shutdown itself. Package
// process answers the calls about commands, package files those about files.
package agent
