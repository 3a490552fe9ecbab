// Command goclient prints the body of a URL, as an ordinary Go program gets it.
package main

import (
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	response, err := http.Get(os.Args[1])
	if err == nil {
		_, err = io.Copy(os.Stdout, response.Body)
		_ = response.Body.Close()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
