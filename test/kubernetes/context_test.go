package kubernetes

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// TestServeContext chooses between two contexts of a kubeconfig, as an operator does:
// in the configuration file, and by a flag, which wins.
func TestServeContext(t *testing.T) {
	t.Parallel()
	client, _ := clientset(t)
	namespace := namespace(t, client)
	file, err := clientcmd.LoadFromFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		t.Fatal(err)
	}
	good := file.Contexts[file.CurrentContext].DeepCopy()
	good.Namespace = namespace
	nowhere := file.Clusters[good.Cluster].DeepCopy()
	nowhere.Server = "https://127.0.0.1:1"
	file.Clusters["nowhere"] = nowhere
	file.Contexts = map[string]*clientcmdapi.Context{"good": good, "bad": {Cluster: "nowhere", AuthInfo: good.AuthInfo}}
	file.CurrentContext = "bad"
	dir := t.TempDir()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := clientcmd.WriteToFile(*file, kubeconfig); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, context string // of the file
		flag          string
		says          string // empty: it serves
	}{
		{"S3-9 the current one", "", "", "127.0.0.1:1"},
		{"S3-9 of the configuration file", "good", "", ""},
		{"S3-9 of the flag", "bad", "good", ""},
		{"S3-9 one that is wrong", "", "goood", `context "goood" does not exist`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			config := filepath.Join(dir, "config.yaml")
			text := "kubernetes: {kubeconfig: " + kubeconfig + ", context: " + tt.context + "}\n"
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), waitTimeout/4)
			defer cancel()
			args := []string{"serve", "--provider", "kubernetes", "--listen", "unix://" + filepath.Join(dir, "s"), "--state-dir", dir, "--config", config}
			if tt.flag != "" {
				args = append(args, "--kubernetes-context", tt.flag)
			}
			cmd := exec.CommandContext(ctx, binary("sandgate"), args...)
			said := &firstServes{cancel: cancel}
			cmd.Stderr = said
			err := cmd.Run()
			if serves := said.serves; serves != (tt.says == "") || !strings.Contains(said.printed.String(), tt.says) {
				t.Errorf("%v: %s", err, &said.printed)
			}
		})
	}
}

// firstServes keeps what a server prints, and ends it once it serves.
type firstServes struct {
	printed bytes.Buffer
	serves  bool
	cancel  func()
}

func (f *firstServes) Write(p []byte) (int, error) {
	n, err := f.printed.Write(p)
	if strings.Contains(f.printed.String(), " serves at ") {
		f.serves = true
		f.cancel()
	}
	return n, err
}
