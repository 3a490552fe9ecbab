// Package server implements SandboxService. It authenticates callers, applies
// policy, ends lifetimes, and routes every call to the agent inside the right
// sandbox over Provider.Dial.
//
// It programs against package providers only and does not know the substrate.
// It trusts no agent: it checks the order, size and single end of an agent's
// messages before it forwards them, and never decodes content.
package server
