# Shared by ./demo and ./test: makes .venv at the repository's root and installs into it.
# Source it from a bash script that has set ROOT and changed into it.

# Tests start some thousand interpreters; without this each would compile the whole package anew.
unset PYTHONDONTWRITEBYTECODE

say() { printf '%s\n' "$*"; }

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# Prints the first Python that is new enough; PYTHON names another one.
find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      printf '%s\n' "$candidate"
      return 0
    fi
  done
  return 1
}

# announce WHAT DOWNLOAD EXTRAS GROUP...: the first lines of a command, before anything is done:
# what it will do, how long that takes, and what is downloaded.
announce() {
  say "$1"
  if [[ -f $(stamp_of "${@:3}") ]]; then
    say "The packages are in .venv already: only what pyproject.toml asks for since is downloaded."
  else
    say "The first time it downloads $2, which takes some minutes more."
  fi
}

# stamp_of EXTRAS GROUP...: the file that says that they are installed.
stamp_of() {
  local IFS=-
  printf '%s/.venv/installed-%s\n' "$ROOT" "$*"
}

# ensure_environment EXTRAS GROUP...: after it, $VENV_PYTHON has shardwise (editable, with the
# extras) and the dependency groups. Does nothing if that was done for this pyproject.toml already;
# the stamp also holds the checkout's path, because an editable install points there.
ensure_environment() {
  local extras=$1 group python stamp wanted
  stamp=$(stamp_of "$@")
  shift
  VENV_PYTHON="$ROOT/.venv/bin/python"

  if ! "$VENV_PYTHON" -m pip --version >/dev/null 2>&1; then
    python=$(find_python) || die "needs Python 3.11 or newer: none of python3, python3.13, python3.12, python3.11 is one (PYTHON=/path/to/python names another)"
    say "making .venv with $("$python" --version)"
    "$python" -m venv "$ROOT/.venv" || die "could not make .venv (on Debian and Ubuntu the package python3-venv is needed)"
  fi
  "$VENV_PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die ".venv holds $("$VENV_PYTHON" --version), and 3.11 or newer is needed: remove .venv and start again"

  wanted=$("$VENV_PYTHON" -c '
import hashlib, sys
print(hashlib.sha256(sys.argv[1].encode() + open("pyproject.toml", "rb").read()).hexdigest())
' "$ROOT")
  if [[ -f $stamp && $(<"$stamp") == "$wanted" ]]; then
    return 0
  fi

  say "installing shardwise[$extras] and the groups $* into .venv (the first time takes minutes)"
  # Dependency groups need pip 25.1.
  "$VENV_PYTHON" -m pip install --quiet --quiet --disable-pip-version-check --upgrade 'pip>=25.1' ||
    die "could not upgrade pip in .venv"
  local groups=()
  for group in "$@"; do groups+=(--group "$group"); done
  "$VENV_PYTHON" -m pip install --quiet --quiet --disable-pip-version-check \
    --editable ".[$extras]" "${groups[@]}" || die "could not install into .venv"
  printf '%s\n' "$wanted" >"$stamp"
}

# ensure_servers: the servers that the tests start on the loopback: nginx and OpenSSH by apt (root
# or sudo), azurite by npm (into .venv); Chromium by apt, which looks at pages; and pyright by npm.
# The S3 gateway is a Python package of the group `test`. What can't be installed here is said, and
# its tests skip; with CI set they fail.
ensure_servers() {
  local name
  PATH="$PATH:/usr/sbin" command -v nginx >/dev/null ||
    install_packages nginx-light || say "nginx is not here and could not be installed: its tests skip"
  PATH="$PATH:/usr/sbin" command -v sshd >/dev/null || install_packages openssh-server ||
    say "sshd is not here and could not be installed: its tests skip"
  command -v chromium >/dev/null || install_packages chromium ||
    say "chromium is not here and could not be installed: its tests skip"
  # The last azurite for the Node.js of Debian 12.
  for name in azurite@3.35.0 pyright@1.1.414; do
    [[ -d $ROOT/.venv/node/node_modules/${name%@*} ]] && continue
    command -v npm >/dev/null || install_packages nodejs npm || true
    npm install --silent --no-audit --no-fund --prefix "$ROOT/.venv/node" "$name" >/dev/null ||
      say "$name is not here and could not be installed by npm: its tests skip"
  done
}

# ensure_pythons: .venv/pythons/3.X with what the package requires, for each other Python that is
# here: the tests install the wheel beside it. Tests of those that are not here skip.
ensure_pythons() {
  local version python home needs
  mapfile -t needs < <("$VENV_PYTHON" -c '
import tomllib
print(*tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"], sep="\n")
')
  for version in 3.11 3.12 3.13 3.14; do
    home="$ROOT/.venv/pythons/$version"
    [[ -f $home/ready && $(<"$home/ready") == "${needs[*]}" ]] && continue
    for python in "python$version" "$(pyenv prefix "$version" 2>/dev/null)/bin/python"; do
      "$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
        >/dev/null 2>&1 || continue
      say "installing what shardwise requires for Python $version"
      "$python" -m venv "$home" && "$home/bin/python" -m pip install --quiet --quiet --no-compile \
        --disable-pip-version-check "${needs[@]}" && printf '%s' "${needs[*]}" >"$home/ready" && break ||
        say "that could not be installed: its tests skip"
    done
  done
}

# install_packages NAME...: Debian packages, where this may install them.
install_packages() {
  local as_root=()
  command -v apt-get >/dev/null || return 1
  if ((EUID != 0)); then
    sudo -n true 2>/dev/null || return 1
    as_root=(sudo -n)
  fi
  say "installing $*"
  "${as_root[@]}" apt-get update -qq >/dev/null || true # an old list may do
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends "$@" >/dev/null
}

# ensure_suites: the source packages with WebDataset's and wids' own tests, into .venv/suites, and
# the Debian packages that those tests and the ones of video call. What can't be had is said, and
# the tests that need it skip; with CI set they fail.
ensure_suites() {
  local suites="$ROOT/.venv/suites" name package
  for name in webdataset==1.0.2 wids==0.1.11; do
    package="$suites/${name/==/-}.tar.gz"
    [[ -f $package ]] ||
      "$VENV_PYTHON" -m pip download --quiet --quiet --disable-pip-version-check \
        --no-deps --no-binary :all: --dest "$suites" "$name" >/dev/null ||
      say "the source package $name could not be downloaded: its tests skip"
  done
  for name in curl file ffmpeg; do
    command -v "$name" >/dev/null || install_packages "$name" ||
      say "$name is not here and could not be installed: tests that need it skip"
  done
}
