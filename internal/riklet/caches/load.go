package caches

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"rik.dev/rik/internal/excerpt"
	"rik.dev/rik/internal/riklet/imagesession"
	"rik.dev/rik/internal/riklet/session"
)

// Sessions serves requests of users about the images. users lists the instances that need images.
func (s *Caches) Sessions(users func() []imagesession.User) session.Images {
	return imagesession.New(s.Images, users)
}

// Load loads the image archives of the node. Until it returns, pulls of images that the node does not
// have wait. It returns a message about the archives that it refused, or "".
func (s *Caches) Load(ctx context.Context) string {
	if s.load == nil {
		return ""
	}
	return refused(s.load(ctx))
}

const (
	// maxRefused is the number of archives that a message about refused archives describes. The log
	// describes all of them.
	maxRefused = 3
	// maxReason limits the text about one archive.
	maxReason = 300
)

func refused(problems map[string]error) string {
	var texts []string
	for i, name := range slices.Sorted(maps.Keys(problems)) {
		if i == maxRefused {
			texts = append(texts, fmt.Sprintf("and %d more; see the log of the riklet", len(problems)-maxRefused))
			break
		}
		texts = append(texts, excerpt.Of(fmt.Sprintf("%s: %v", name, problems[name]), maxReason))
	}
	return strings.Join(texts, "; ")
}
