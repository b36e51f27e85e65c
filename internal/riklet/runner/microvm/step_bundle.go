package microvm

import (
	"context"
)

func (f *attempt) bundle(context.Context) error {
	return f.MakeBundle()
}
