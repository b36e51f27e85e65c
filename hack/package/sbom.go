package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// mergeBOMs writes one document from those of the programs. Each program is a component with the
// modules in it. kernel is the name of the Debian package of the microVMs' kernel, or empty.
func mergeBOMs(kernel, out string, from []string) (err error) {
	date, err := buildTime()
	if err != nil {
		return err
	}
	all := cdx.NewBOM()
	all.Metadata = &cdx.Metadata{
		Timestamp: date.Format("2006-01-02T15:04:05Z"),
		Component: &cdx.Component{BOMRef: "rik", Type: cdx.ComponentTypeApplication, Name: "rik", Version: envOr("RIK_PACKAGE_VERSION", "0")},
	}
	components := map[string]cdx.Component{}
	var dependencies []cdx.Dependency
	for _, name := range from {
		bom, err := readBOM(name)
		if err != nil {
			return err
		}
		main := *bom.Metadata.Component
		main.Name = strings.TrimSuffix(name[strings.LastIndexByte(name, '/')+1:], ".json")
		main.BOMRef, main.Type = "program/"+main.Name, cdx.ComponentTypeApplication
		components[main.BOMRef] = main
		var contains []string
		for _, c := range *bom.Components {
			components[c.BOMRef] = c
			contains = append(contains, c.BOMRef)
		}
		slices.Sort(contains)
		dependencies = append(dependencies, cdx.Dependency{Ref: main.BOMRef, Dependencies: &contains})
	}
	if kernel != "" {
		name, version, _ := strings.Cut(kernel, "=")
		components["kernel"] = cdx.Component{
			BOMRef: "kernel", Type: cdx.ComponentTypeOS, Name: name, Version: version,
			PackageURL: fmt.Sprintf("pkg:deb/debian/%s@%s", name, version), Licenses: &cdx.Licenses{{License: &cdx.License{ID: "GPL-2.0-only"}}},
		}
	}
	list := make([]cdx.Component, 0, len(components))
	for _, c := range components {
		list = append(list, c)
	}
	slices.SortFunc(list, func(a, b cdx.Component) int { return cmp.Compare(a.BOMRef, b.BOMRef) })
	all.Components, all.Dependencies = &list, &dependencies
	file, err := os.Create(out)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return cdx.NewBOMEncoder(file, cdx.BOMFileFormatJSON).SetPretty(true).Encode(all)
}

func readBOM(name string) (cdx.BOM, error) {
	var bom cdx.BOM
	text, err := os.ReadFile(name)
	if err != nil {
		return bom, err
	}
	if err := json.Unmarshal(text, &bom); err != nil {
		return bom, fmt.Errorf("reading %s: %w", name, err)
	}
	if bom.Metadata == nil || bom.Metadata.Component == nil || bom.Components == nil {
		return bom, fmt.Errorf("%s is not the bill of materials of a program", name)
	}
	return bom, nil
}
