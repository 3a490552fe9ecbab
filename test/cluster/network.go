package main

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
)

// freeSubnet finds addresses for pods that no interface of this machine has: one of
// the sixteen parts of 10.88.0.0/16.
func freeSubnet() (string, error) {
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return "", err
	}
next:
	for part := range 16 {
		subnet := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 88, byte(part * 16), 0}), 20)
		for _, address := range addresses {
			taken, err := netip.ParsePrefix(address.String())
			if err == nil && taken.Overlaps(subnet) {
				continue next
			}
		}
		return subnet.String(), nil
	}
	return "", errors.New("all of 10.88.0.0/16 is taken; are there clusters left to take down?")
}

// makeBridge makes the network interface that the pods hang on. The first pod
// would, but then another cluster could take the addresses meanwhile.
func (c *cluster) makeBridge() error {
	if _, err := net.InterfaceByName(c.state.Name); err == nil {
		return nil
	}
	subnet, err := netip.ParsePrefix(c.state.Subnet)
	if err != nil {
		return err
	}
	gateway := subnet.Addr().Next()
	// With an address of its own. Otherwise the bridge takes the lowest one of the
	// interfaces on it, and each time that one comes or goes, pods send what is for the
	// node to an address that nobody has, until they ask for it again.
	b := gateway.As4()
	address := net.HardwareAddr{0x0a, 0x58, b[0], b[1], b[2], b[3]}.String()
	return errors.Join(
		ip("link", "add", c.state.Name, "address", address, "type", "bridge"),
		ip("address", "add", netip.PrefixFrom(gateway, subnet.Bits()).String(), "dev", c.state.Name),
		ip("link", "set", c.state.Name, "up"),
	)
}

func (c *cluster) removeBridge() error {
	if _, err := net.InterfaceByName(c.state.Name); err != nil {
		return nil // there is none
	}
	return ip("link", "delete", c.state.Name)
}

func ip(args ...string) error {
	cmd := exec.Command("ip", args...)
	cmd.Env = environ()
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(out))
	}
	return nil
}
