// Renders the Helm chart for verification: text/template with Sprig and the functions that Helm adds. Not Helm itself.
// Reads {"files": {name: text}, "top": {Values, Chart, Release, Capabilities}} from stdin; writes {name: rendered} to stdout.
// Debian: apt-get install golang-go golang-github-masterminds-sprig-dev; `python -m build_tools.deploy` builds it.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v2"
)

func main() {
	var input struct {
		Files map[string]string      `json:"files"`
		Top   map[string]interface{} `json:"top"`
	}
	check(json.NewDecoder(os.Stdin).Decode(&input)) // numbers are float64, as in Helm
	all := template.New("chart").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	delete(functions, "env") // as in Helm
	delete(functions, "expandenv")
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out bytes.Buffer
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["tpl"] = func(text string, data interface{}) (string, error) {
		made, err := template.Must(all.Clone()).Parse(text)
		if err != nil {
			return "", err
		}
		var out bytes.Buffer
		err = made.Execute(&out, data)
		return out.String(), err
	}
	functions["toYaml"] = func(value interface{}) string {
		text, err := yaml.Marshal(value)
		check(err)
		return strings.TrimSuffix(string(text), "\n")
	}
	functions["fromYaml"] = func(text string) (map[string]interface{}, error) {
		made := map[string]interface{}{}
		return made, yaml.Unmarshal([]byte(text), &made)
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, errors.New(message)
		}
		return value, nil
	}
	functions["fail"] = func(message string) (string, error) { return "", errors.New(message) }
	functions["lookup"] = func(...string) map[string]interface{} { return map[string]interface{}{} } // as `helm template`
	all.Funcs(functions)
	for name, text := range input.Files {
		_, err := all.New(name).Parse(text)
		check(err)
	}
	rendered := map[string]string{}
	for name := range input.Files {
		if strings.HasPrefix(name, "_") {
			continue
		}
		var out bytes.Buffer
		check(all.ExecuteTemplate(&out, name, input.Top))
		rendered[name] = strings.ReplaceAll(out.String(), "<no value>", "")
	}
	check(json.NewEncoder(os.Stdout).Encode(rendered))
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
