#!/usr/bin/env bash
# Gets what the feature `cuda` is built and tested with, unless the machine has it. See docs/building.md.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
toolchain=$root/.toolchain

# Of one release: drivers of the 580 series do not load the PTX of a newer one.
nvcc_wheels=(
    nvidia-cuda-nvcc==13.0.88
    nvidia-nvvm==13.0.88
    nvidia-cuda-crt==13.0.88
    nvidia-cuda-runtime==13.0.96
    nvidia-cuda-cccl==13.0.85
)
# There are none of release 13.0; these read its code too.
disassembler_wheels=(
    nvidia-cuda-nvdisasm==13.2.86
    nvidia-cuda-cuobjdump==13.2.86
)
libclang_wheels=(libclang==18.1.1)

usage() {
    cat << 'USAGE'
usage: tools/toolchain.sh [--force]

Gets what `cargo build --features cuda` needs, nvcc (CUDA 13.0 or newer) and libclang, and nvdisasm and cuobjdump for
the tests. What the machine has is used; what it lacks is downloaded with pip into the folder .toolchain of the
checkout, about 135 MB, 340 MB unpacked.
No root, no changes elsewhere. A second call finds everything in place and changes nothing.

  --force   download even if the machine has them, and again if .toolchain has them
  --help    this text

Needs Python 3 with pip, gcc and g++.
USAGE
}

fail() {
    printf 'tools/toolchain.sh: %s\n' "$1" >&2
    shift
    [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
    exit 1
}

# $1: a path, as people read it best.
shown() { printf '%s' "${1#"$root"/}"; }

force=false
for argument in "$@"; do
    case $argument in
        --force) force=true ;;
        -h | --help) usage; exit 0 ;;
        *) usage >&2; fail "unknown argument: $argument" ;;
    esac
done

partial=
clean() { [ -z "$partial" ] || rm -rf "$partial"; }
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# ---------------------------------------------------------------- what is there

check_machine() {
    [ "$(uname -s)" = Linux ] || fail "nvcc exists for Linux only, and this is $(uname -s)" \
        "Without the feature cuda, setrank builds everywhere."
    command -v gcc > /dev/null || fail "gcc is missing" \
        "nvcc calls it. Install gcc and g++ (Debian, Ubuntu: apt install g++)."
    # nvcc lets gcc preprocess C++, which needs g++'s compiler proper.
    case $(gcc -print-prog-name=cc1plus) in
        /*) ;;
        *) fail "g++ is missing" "nvcc needs it beside gcc. Install it (Debian, Ubuntu: apt install g++)." ;;
    esac
}

# $1: an nvcc. Prints its version; fails if it does not run or is older than 13.0.
version_of() {
    local version
    version=$("$1" --version 2> /dev/null | sed -n 's/.*release [0-9.]*, V\([0-9.]*\).*/\1/p') || return 1
    [ "${version%%.*}" -ge 13 ] 2> /dev/null || return 1
    printf '%s' "$version"
}

# Prints the first nvcc that is new enough, in the order of build.rs.
find_nvcc() {
    local candidate
    for candidate in \
        "${NVCC-}" "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "${CUDA_PATH:+$CUDA_PATH/bin/nvcc}" \
        "$toolchain/cuda/bin/nvcc" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
        if [ -n "$candidate" ] && version_of "$candidate" > /dev/null; then
            printf '%s' "$candidate"
            return
        fi
    done
    return 1
}

# $1: a folder. Prints the libclang in it, in the order of build.rs: the one that the system means, then the newest;
# libclang-cpp.so is another library.
libclang_in() {
    local file
    local -a files
    mapfile -t files < <(printf '%s\n' "$1"/libclang.so.* | sort -Vr; printf '%s\n' "$1"/libclang-[0-9]*.so* | sort -Vr)
    for file in "$1"/libclang.so "${files[@]}"; do
        if [ -f "$file" ]; then
            printf '%s' "$file"
            return
        fi
    done
    return 1
}

# Prints nvdisasm, if it and cuobjdump are beside the nvcc $1, in .toolchain or on PATH: where the tests look.
find_disassemblers() {
    local folder tool
    for folder in "$(dirname "$1")" "$toolchain/disassemblers/bin"; do
        if [ -x "$folder/nvdisasm" ] && [ -x "$folder/cuobjdump" ]; then
            printf '%s' "$folder/nvdisasm"
            return
        fi
    done
    tool=$(command -v nvdisasm) && command -v cuobjdump > /dev/null && printf '%s' "$tool"
}

# Prints the first libclang, in the order of build.rs.
find_libclang() {
    local folder
    local -a llvm
    # The newest first.
    mapfile -t llvm < <(printf '%s\n' /usr/lib/llvm-*/lib | sort -Vr)
    if [ -f "${LIBCLANG_PATH-}" ]; then
        printf '%s' "$LIBCLANG_PATH"
        return
    fi
    for folder in ${LIBCLANG_PATH:+"$LIBCLANG_PATH"} "$toolchain/libclang" \
        "${llvm[@]}" "/usr/lib/$(uname -m)-linux-gnu" /usr/lib64 /usr/lib /usr/local/lib; do
        libclang_in "$folder" && return
    done
    return 1
}

# What the user names has to be good: build.rs would refuse it too.
check_given() {
    [ -z "${NVCC-}" ] || version_of "$NVCC" > /dev/null || fail "NVCC is $NVCC, which is no nvcc of CUDA 13.0 or newer" \
        "Set it to one, or unset it to have one found or downloaded."
    [ -z "${LIBCLANG_PATH-}" ] || [ -f "$LIBCLANG_PATH" ] || libclang_in "$LIBCLANG_PATH" > /dev/null \
        || fail "LIBCLANG_PATH is $LIBCLANG_PATH, and libclang.so is not there" \
            "Set it to the file or its folder, or unset it to have one found or downloaded."
}

# $1: a folder of .toolchain; the rest: the wheels that it has to come from. Nothing of it may have been lost since.
is_current() {
    local folder=$1
    shift
    [ -f "$folder/wheels.txt" ] && [ "$(cat "$folder/wheels.txt")" = "$(printf '%s\n' "$@")" ] \
        && [ "$(files_of "$folder")" = "$(cat "$folder/files.txt" 2> /dev/null)" ]
}

# $1: a folder of .toolchain. Prints how many files of how many bytes it has, but for the lists.
files_of() {
    find "$1" -type f ! -path "$1/wheels.txt" ! -path "$1/files.txt" -printf '%s\n' \
        | awk '{ bytes += $1 } END { print NR, bytes + 0 }'
}

# ---------------------------------------------------------------- downloads

# Downloads wheels and unpacks them into $partial/wheels.
download() {
    local pip
    command -v python3 > /dev/null || fail "python3 is missing" "Install Python 3 with pip."
    pip=(python3 -m pip)
    "${pip[@]}" --version > /dev/null 2>&1 || fail "pip is missing" \
        "Install it for $(command -v python3) (Debian, Ubuntu: apt install python3-pip), or install CUDA 13.0 and libclang."
    mkdir -p "$toolchain"
    # What a killed call left behind.
    find "$toolchain" -maxdepth 1 -name '.partial.*' -mmin +60 -exec rm -rf {} +
    partial=$(mktemp -d "$toolchain/.partial.XXXXXX")
    # Settings of the user that do not go with --target are overruled.
    if ! PIP_USER=0 PIP_REQUIRE_VIRTUALENV=0 PIP_ROOT_USER_ACTION=ignore "${pip[@]}" install --quiet --no-input \
        --disable-pip-version-check --no-warn-script-location --no-deps --no-compile --only-binary :all: \
        --target "$partial/wheels" "$@" > "$partial/log" 2>&1; then
        sed 's/^/  pip: /' "$partial/log" | tail -n 8 >&2
        fail "pip could not get $*" \
            "Is there a network, and space on the disk? A mirror is set in pip's own configuration." \
            "Or install CUDA 13.0 and libclang yourself: docs/building.md says where they are looked for."
    fi
}

# $1: a folder of .toolchain, $2: where its content is now; the rest: the wheels that it came from.
put() {
    local folder=$1 content=$2
    shift 2
    printf '%s\n' "$@" > "$content/wheels.txt"
    files_of "$content" > "$content/files.txt"
    rm -rf "$folder"
    mv -T "$content" "$folder"
    rm -rf "$partial"
    partial=
}

get_cuda() {
    local cuda version
    download "${nvcc_wheels[@]}"
    cuda=$partial/wheels/nvidia/cu13
    version=$(version_of "$cuda/bin/nvcc") || fail "the nvcc that was downloaded does not run on this machine" \
        "$("$cuda/bin/nvcc" --version 2>&1 | head -n 1)"
    mv "$partial"/wheels/nvidia_cuda_nvcc-*.dist-info/licenses/License.txt "$cuda/License.txt"
    put "$toolchain/cuda" "$cuda" "${nvcc_wheels[@]}"
    nvcc=$toolchain/cuda/bin/nvcc
    echo "nvcc $version: downloaded to .toolchain/cuda"
}

get_disassemblers() {
    local tools
    download "${disassembler_wheels[@]}"
    tools=$partial/wheels/nvidia/cu13
    mv "$partial"/wheels/nvidia_cuda_nvdisasm-*.dist-info/licenses/License.txt "$tools/License.txt"
    put "$toolchain/disassemblers" "$tools" "${disassembler_wheels[@]}"
    echo "nvdisasm, cuobjdump: downloaded to .toolchain/disassemblers"
}

get_libclang() {
    local libclang
    download "${libclang_wheels[@]}"
    libclang=$partial/libclang
    mkdir "$libclang"
    mv "$partial/wheels/clang/native/libclang.so" "$libclang"
    mv "$partial"/wheels/libclang-*.dist-info/LICENSE.TXT "$libclang/License.txt"
    put "$toolchain/libclang" "$libclang" "${libclang_wheels[@]}"
    echo "libclang: downloaded to .toolchain/libclang"
}

# ---------------------------------------------------------------- all three

check_machine
check_given

if $force || ! nvcc=$(find_nvcc); then
    get_cuda
elif [ "$nvcc" = "$toolchain/cuda/bin/nvcc" ] && ! is_current "$toolchain/cuda" "${nvcc_wheels[@]}"; then
    get_cuda
else
    echo "nvcc $(version_of "$nvcc"): $(shown "$nvcc"), nothing to do"
fi

if $force || ! disassembler=$(find_disassemblers "$nvcc"); then
    get_disassemblers
elif [ "$disassembler" = "$toolchain/disassemblers/bin/nvdisasm" ] \
    && ! is_current "$toolchain/disassemblers" "${disassembler_wheels[@]}"; then
    get_disassemblers
else
    echo "nvdisasm, cuobjdump: $(shown "$(dirname "$disassembler")"), nothing to do"
fi

if $force || ! libclang=$(find_libclang); then
    get_libclang
elif [ "$libclang" = "$toolchain/libclang/libclang.so" ] && ! is_current "$toolchain/libclang" "${libclang_wheels[@]}"; then
    get_libclang
else
    echo "libclang: $(shown "$libclang"), nothing to do"
fi
