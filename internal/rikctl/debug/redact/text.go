package redact

import (
	"cmp"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// secretWords are parts of names of secrets, in lower case and without separators.
var secretWords = []string{
	"password", "passwd", "passphrase", "pwd", "secret", "token", "apikey", "accesskey", "privatekey", "signingkey", "encryptionkey", "credential",
	"authorization", "cookie", "clientkey", "kubeconfig", "connectionstring", "databaseurl", "dsn", "webhookurl", "sessionid", "signature",
}

// secretNames are whole names of secrets.
var secretNames = []string{"auth", "pass", "sig", "jwt", "bearer", "pin", "otp", "salt", "psk"}

// referenceEnds are ends of names that refer to a secret, or describe it, and do not contain it.
var referenceEnds = []string{"name", "names", "ref", "refs", "file", "path", "dir", "mount", "type", "count", "seconds", "ttl", "id", "expiration", "secrets", "policy"}

// separators are removed from a name before it is compared.
var separators = strings.NewReplacer("-", "", "_", "", ".", "", " ", "", "/", "")

// Secret reports whether a field, variable or parameter with this name holds a secret.
func Secret(name string) bool {
	plain := strings.ToLower(separators.Replace(strings.Trim(name, `"'`)))
	for _, end := range referenceEnds {
		// "sessionid" is a secret itself.
		if strings.HasSuffix(plain, end) && plain != "sessionid" {
			return false
		}
	}
	for _, n := range secretNames {
		if plain == n {
			return true
		}
	}
	for _, w := range secretWords {
		if strings.Contains(plain, w) {
			return true
		}
	}
	return false
}

var (
	privateKey = regexp.MustCompile(`(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|$)`)
	// userinfo is the part of a URL before the host. A password may contain characters that should be
	// encoded.
	userinfo = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://)([^\s/"'<>]+)@`)
	// query is the part of a URL after the question mark. Signed URLs have their credentials there.
	query = regexp.MustCompile(`([A-Za-z][A-Za-z0-9+.-]*://[^\s?"'<>]+\?)([^\s#"'<>]+)`)
	// header is a header of HTTP up to the end of the line.
	header = regexp.MustCompile(`(?i)\b((?:proxy-)?authorization|(?:set-)?cookie|x-[a-z0-9-]*(?:token|key|secret|auth)[a-z0-9-]*)(["']?[ \t]*[:=][ \t]*)([^\r\n]+)`)
	scheme = regexp.MustCompile(`(?i)\b(bearer|basic|digest|negotiate)[ \t]+([A-Za-z0-9._~+/=-]{6,})`)
	jwt    = regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?`)
	// joinToken is a join token of rik; see package jointoken.
	joinToken = regexp.MustCompile(`\brik1[.:_-]?[A-Za-z0-9._:-]{16,}`)
	// assigned is a name and its value, as in key=value, "key": "value" and key: value. The value may
	// be quoted.
	assigned = regexp.MustCompile(`([A-Za-z_][A-Za-z0-9_.-]*)(["']?[ \t]*(?:=|:)[ \t]*)("(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s,;&"']+)`)
	// flag is a flag of a command line with its value as the next word.
	flag = regexp.MustCompile(`(--?[A-Za-z][A-Za-z0-9_.-]*)([ \t]+)("(?:[^"\\]|\\.)*"?|'[^']*'?|[^\s"'-]\S*)`)
)

// pass is one pattern, and the group that it removes.
type pass struct {
	pattern *regexp.Regexp
	group   int
	with    string
	// needs are parts of which a line must have one. The patterns are slow, and few lines have them.
	needs []string
	// when decides for each match; nil means always.
	when func(groups []string) bool
}

var passes = []pass{
	{pattern: userinfo, group: 2, needs: []string{"@"}},
	{pattern: query, group: 2, needs: []string{"?"}},
	{pattern: header, group: 3, needs: []string{"ookie", "OOKIE", "uthorization", "UTHORIZATION", "X-", "x-"}},
	{pattern: scheme, group: 2, needs: []string{"earer", "EARER", "asic", "ASIC", "igest", "DIGEST", "egotiate", "NEGOTIATE"}},
	{pattern: jwt, needs: []string{"eyJ"}},
	{pattern: joinToken, needs: []string{"rik1"}},
	{pattern: assigned, group: 3, needs: []string{"=", ":"}, when: func(groups []string) bool { return Secret(groups[1]) }},
	{pattern: flag, group: 3, needs: []string{"-"}, when: func(groups []string) bool { return Secret(strings.TrimLeft(groups[1], "-")) }},
}

// Text removes what has the form of a secret from a text.
func (r *Redactor) Text(text string) string {
	if strings.Contains(text, "PRIVATE KEY-----") {
		text = r.replace(pass{pattern: privateKey, with: Mark + " PRIVATE KEY"}, text)
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		for _, p := range passes {
			if slices.ContainsFunc(p.needs, func(part string) bool { return strings.Contains(line, part) }) {
				line = r.replace(p, line)
			}
		}
		b.WriteString(line)
	}
	return b.String()
}

// replace replaces the group of each match, or the whole match with group 0, and learns what was
// there. Quotes around it stay.
func (r *Redactor) replace(p pass, text string) string {
	var b strings.Builder
	last := 0
	for _, at := range p.pattern.FindAllStringSubmatchIndex(text, -1) {
		if p.when != nil && !p.when(groupsOf(text, at)) {
			continue
		}
		from, to := at[2*p.group], at[2*p.group+1]
		for _, quote := range []string{`"`, "'"} {
			if strings.HasPrefix(text[from:to], quote) {
				from++
				to -= len(quote) * min(1, strings.Count(text[from:to], quote))
			}
		}
		value := text[from:to]
		if value == "" || strings.HasPrefix(value, Mark) {
			continue
		}
		learned := value
		if p.pattern == userinfo {
			// The name of the user is not secret, and may be an ordinary word.
			if _, password, found := strings.Cut(value, ":"); found {
				learned = password
			}
		}
		if p.when == nil || !word(learned) {
			r.Learn(learned)
		}
		b.WriteString(text[last:from])
		b.WriteString(cmp.Or(p.with, Mark))
		last = to
	}
	b.WriteString(text[last:])
	return b.String()
}

// word reports whether a value has only letters. Such a value is removed where it stands. It is not
// removed everywhere: it may be an ordinary word, as in "token: invalid".
func word(value string) bool {
	return !strings.ContainsFunc(value, func(c rune) bool { return !unicode.IsLetter(c) })
}

func groupsOf(text string, at []int) []string {
	groups := make([]string, len(at)/2)
	for i := range groups {
		if at[2*i] >= 0 {
			groups[i] = text[at[2*i]:at[2*i+1]]
		}
	}
	return groups
}
