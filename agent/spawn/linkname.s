// This file is empty: its presence lets fork_linux.go declare functions whose
// bodies are in the runtime.
