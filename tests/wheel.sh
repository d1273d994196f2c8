#!/usr/bin/env bash
# Tries a built wheel the way a user would: clean environments without a Rust toolchain on the PATH, both majors of
# numpy, two ranks that all-reduce. Usage: tests/wheel.sh dist/arx-*.whl
set -euo pipefail

wheel=$(realpath "$1")
top=$(cd "$(dirname "$0")/.." && pwd)
python=$top/.venv/bin/python
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The oldest libc that the wheel may ask for, by its tag and by the symbols it really needs.
platform_tag() {
	"$python" -m auditwheel show "$wheel" > "$scratch/audit"
	if ! grep -q '"manylinux_2_17_' "$scratch/audit"; then
		cat "$scratch/audit" >&2
		echo "arx: the wheel is not manylinux_2_17" >&2
		exit 1
	fi
	echo "arx: $(basename "$wheel") asks for no libc newer than 2.17"
}

# try INTERPRETER NUMPY: install the wheel and that numpy, run the README's example on two ranks, compare what it prints.
try() {
	local venv
	venv=$(mktemp -d "$scratch/venv-XXXX")
	"$1" -m venv "$venv"
	PATH=$venv/bin "$venv/bin/pip" install --quiet --only-binary :all: "$wheel" "numpy$2"
	(cd "$scratch" && PATH=$venv/bin "$venv/bin/arx" run -n 2 "$top/examples/hello.py" > printed)
	sort "$scratch/printed" | diff /dev/fd/3 - 3<<- 'END'
		[rank 0] rank 0 of 2: sum [3. 3. 3.], average 0.5, largest 1.5
		[rank 1] rank 1 of 2: sum [3. 3. 3.], average 0.5, largest 1.5
	END
	"$venv/bin/python" -c '
import platform, numpy, arx
print(f"arx: {arx.__version__} works with Python {platform.python_version()} and numpy {numpy.__version__}")'
}

# The last numpy 1 has wheels for Python 3.11 and 3.12.
python_of_numpy_1() {
	local candidate
	for candidate in "$python" python3.11 python3.12; do
		if "$candidate" -c 'import sys; sys.exit(sys.version_info >= (3, 13))' 2> /dev/null; then
			echo "$candidate"
			return
		fi
	done
}

export PIP_DISABLE_PIP_VERSION_CHECK=1
platform_tag
try "$python" ">=2"
old=$(python_of_numpy_1)
if [ -n "$old" ]; then
	try "$old" "==1.26.*"
else
	echo "arx: not tried with numpy 1.26, which needs Python 3.11 or 3.12: there is neither"
fi
