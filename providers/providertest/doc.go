// Package providertest is the conformance suite of providers. Each case is named
// after the contract that it checks.
//
// # How to add a provider
//
// Write the package, and one test of about fifteen lines:
//
//	func TestConformance(t *testing.T) {
//		state := t.TempDir()
//		providertest.Run(t, providertest.Harness{
//			Open: func(t *testing.T) providers.Provider {
//				p, err := New(t.Context(), Config{StateDir: state})
//				if err != nil {
//					t.Fatal(err)
//				}
//				return p
//			},
//			Spec: func() providers.Spec {
//				return providers.Spec{Network: providers.NetworkNone, Resources: limits}
//			},
//		})
//	}
//
// Then add one case to the switch in cmd/sandgate and one row to the table of
// providers in the documentation. If it takes more, the interface leaks: report it
// instead of working around it.
//
// Run calls Open several times for the same substrate, because a provider must
// find the sandboxes of another one. Harness.Except names the cases that a
// provider cannot pass by its nature, each with a reason. An unknown name is an
// error.
//
// The cases that only use a sandbox also run through a server: see conformance.Suite.
package providertest
