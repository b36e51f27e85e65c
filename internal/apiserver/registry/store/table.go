package store

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/duration"
)

// Table defines the table that clients print for a resource.
type Table[T Object] struct {
	Columns []metav1.TableColumnDefinition
	// Row returns a cell for each column.
	Row func(object T, now time.Time) []any
}

// Column returns a column that is always printed.
func Column(name, kind, description string) metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: name, Type: kind, Description: description}
}

// Name returns the first column of every table.
func Name() metav1.TableColumnDefinition {
	return metav1.TableColumnDefinition{Name: "Name", Type: "string", Format: "name", Description: "Name, unique among its kind."}
}

// Age returns the column with the time since an object was created.
func Age() metav1.TableColumnDefinition {
	return Column("Age", "string", "Time since it was created.")
}

// Wide returns a column that is printed only on request.
func Wide(name, kind, description string) metav1.TableColumnDefinition {
	c := Column(name, kind, description)
	c.Priority = 1
	return c
}

// Since formats an age.
func Since(t metav1.Time, now time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(t.Time))
}

// Or replaces an empty text with the one that kubectl's own tables show.
func Or(text string) string {
	if text == "" {
		return "<none>"
	}
	return text
}

// ConvertToTable converts an object or a list to a table.
func (t Table[T]) ConvertToTable(_ context.Context, object, options runtime.Object) (*metav1.Table, error) {
	table := &metav1.Table{}
	now := time.Now()
	add := func(o runtime.Object) error {
		typed, ok := o.(T)
		if !ok {
			return fmt.Errorf("printing %T", o)
		}
		table.Rows = append(table.Rows, metav1.TableRow{Cells: t.Row(typed, now), Object: runtime.RawExtension{Object: o}})
		return nil
	}
	var err error
	if meta.IsListType(object) {
		err = meta.EachListItem(object, add)
	} else {
		err = add(object)
	}
	if err != nil {
		return nil, err
	}
	if list, err := meta.ListAccessor(object); err == nil {
		table.ResourceVersion, table.Continue, table.RemainingItemCount = list.GetResourceVersion(), list.GetContinue(), list.GetRemainingItemCount()
	} else if one, err := meta.CommonAccessor(object); err == nil {
		table.ResourceVersion = one.GetResourceVersion()
	}
	if o, ok := options.(*metav1.TableOptions); !ok || !o.NoHeaders {
		table.ColumnDefinitions = t.Columns
	}
	return table, nil
}
