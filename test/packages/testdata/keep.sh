# Keeps one connection to the sample application open: requests before and after /test/go exists.
# Prints the first line of both answers.
exec 3<>/dev/tcp/127.0.0.1/30080
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
touch /test/connected
for _ in $(seq 1200); do [ -e /test/go ] && break; sleep 0.1; done
request
