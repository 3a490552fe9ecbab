package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	clientcmd "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"
)

// authority signs the certificates of one cluster.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  crypto.Signer
}

// makePKI writes keys, certificates and kubeconfigs, unless it has done so before.
func (c *cluster) makePKI() error {
	if _, err := os.Stat(c.path("kubeconfig")); err == nil {
		return nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	a := &authority{dir: c.path("pki")}
	if err := os.MkdirAll(a.dir, 0o700); err != nil {
		return err
	}
	var err error
	if a.cert, a.key, err = a.issue("ca", &x509.Certificate{
		Subject:  pkix.Name{CommonName: "cluster for tests"},
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}); err != nil {
		return err
	}
	// Service account tokens.
	if err := writeKey(filepath.Join(a.dir, "accounts.key"), nil); err != nil {
		return err
	}
	loopback := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(10, 96, 0, 1)}
	for name, cert := range map[string]*x509.Certificate{
		"apiserver": {
			Subject: pkix.Name{CommonName: "apiserver"}, IPAddresses: loopback,
			DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		},
		"kubelet": {
			Subject: pkix.Name{CommonName: "localhost"}, IPAddresses: loopback, DNSNames: []string{node},
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		},
		"admin":      client("admin", "system:masters"),
		"manager":    client("system:kube-controller-manager"),
		"scheduler":  client("system:kube-scheduler"),
		"node":       client("system:node:"+node, "system:nodes"),
		"to-kubelet": client("apiserver"),
	} {
		if _, _, err := a.issue(name, cert); err != nil {
			return err
		}
	}
	for _, name := range []string{"manager", "scheduler", "node"} {
		if err := c.writeKubeconfig(filepath.Join(a.dir, name+".kubeconfig"), name); err != nil {
			return err
		}
	}
	return c.writeKubeconfig(c.path("kubeconfig"), "admin")
}

func client(user string, groups ...string) *x509.Certificate {
	return &x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
}

// issue writes NAME.crt and NAME.key, signed by the authority, or by itself when
// it is the authority's own.
func (a *authority) issue(name string, cert *x509.Certificate) (*x509.Certificate, crypto.Signer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	if cert.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return nil, nil, err
	}
	cert.NotBefore = time.Now().Add(-time.Hour)
	cert.NotAfter = cert.NotBefore.AddDate(1, 0, 0)
	cert.KeyUsage |= x509.KeyUsageDigitalSignature
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = cert, crypto.Signer(key)
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), signer)
	if err != nil {
		return nil, nil, err
	}
	if err := writeKey(filepath.Join(a.dir, name+".key"), key); err != nil {
		return nil, nil, err
	}
	file := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(filepath.Join(a.dir, name+".crt"), file, 0o644); err != nil {
		return nil, nil, err
	}
	made, err := x509.ParseCertificate(der)
	return made, key, err
}

// writeKey writes a key; nil stands for a new one.
func writeKey(path string, key *ecdsa.PrivateKey) error {
	var err error
	if key == nil {
		if key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
			return err
		}
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

// writeKubeconfig writes a file that holds all it needs and may be copied.
func (c *cluster) writeKubeconfig(path, user string) error {
	var read error
	file := func(name string) []byte {
		data, err := os.ReadFile(c.path("pki", name))
		read = errors.Join(read, err)
		return data
	}
	config := clientcmd.Config{
		APIVersion: "v1", Kind: "Config", CurrentContext: "cluster",
		Clusters: []clientcmd.NamedCluster{{Name: "cluster", Cluster: clientcmd.Cluster{
			Server: c.server(), CertificateAuthorityData: file("ca.crt"),
		}}},
		AuthInfos: []clientcmd.NamedAuthInfo{{Name: user, AuthInfo: clientcmd.AuthInfo{
			ClientCertificateData: file(user + ".crt"), ClientKeyData: file(user + ".key"),
		}}},
		Contexts: []clientcmd.NamedContext{{Name: "cluster", Context: clientcmd.Context{
			Cluster: "cluster", AuthInfo: user,
		}}},
	}
	if read != nil {
		return read
	}
	data, err := yaml.Marshal(config)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}
