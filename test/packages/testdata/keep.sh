# Keeps one connection to an HTTP server of this machine open. It creates the file /test/NAME.connected
# after the first answer, and sends the second request when /test/NAME.go exists. It prints the first
# line of both answers. usage: keep.sh PORT NAME
exec 3<>"/dev/tcp/127.0.0.1/$1"
request() {
  printf 'GET / HTTP/1.1\r\nHost: hello\r\n\r\n' >&3
  local line length=0
  IFS= read -r -t 10 line <&3 || return 1
  echo "${line%$'\r'}"
  while IFS= read -r -t 10 line <&3; do
    line=${line%$'\r'}
    case ${line,,} in content-length:*) length=${line##* } ;; '') break ;; esac
  done
  head -c "$length" <&3 >/dev/null
}
request
touch "/test/$2.connected"
for _ in $(seq 9000); do [ -e "/test/$2.go" ] && break; sleep 0.1; done
request
