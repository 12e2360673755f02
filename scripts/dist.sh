#!/usr/bin/env bash
# Builds the release: for each target a stripped binary, in an archive with licences, completions
# and manual pages, and a bill of materials; for static Linux binaries also a Debian package, if
# dpkg-deb is installed; then the SHA-256 sums. Everything goes to target/dist.
#
#   scripts/dist.sh [TARGET...]      the default is every target whose compiler is installed
#
# FORERUN_DIST_FEATURES adds features, such as laboratory. The compilers: musl-tools
# (x86_64-unknown-linux-musl), gcc-aarch64-linux-gnu (aarch64-unknown-linux-musl),
# gcc-mingw-w64-x86-64 (x86_64-pc-windows-gnu); Apple's targets and x86_64-pc-windows-msvc build on
# their own systems: .github/workflows/release.yml.
set -euo pipefail
cd "$(dirname "$0")/.."

need() { command -v "$1" >/dev/null 2>&1; }
features=${FORERUN_DIST_FEATURES:-}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -1)
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# C code of dependencies for musl. The GNU compiler's fortified functions are not in musl.
export CC_x86_64_unknown_linux_musl=musl-gcc
export CC_aarch64_unknown_linux_musl=aarch64-linux-gnu-gcc
export CFLAGS_aarch64_unknown_linux_musl=-U_FORTIFY_SOURCE
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_MUSL_LINKER=rust-lld

targets=("$@")
if [ ${#targets[@]} = 0 ]; then
    need musl-gcc && targets+=(x86_64-unknown-linux-musl)
    need aarch64-linux-gnu-gcc && targets+=(aarch64-unknown-linux-musl)
    need x86_64-w64-mingw32-gcc && targets+=(x86_64-pc-windows-gnu)
    [ "$(uname -s)" != Darwin ] || targets+=(aarch64-apple-darwin)
fi
[ ${#targets[@]} != 0 ] || { echo "no compiler of a release target is installed: $0 names them" >&2; exit 1; }

dist=target/dist
mkdir -p "$dist"

# Runs a binary of a target, if this machine can.
run_on() {
    case "$1" in
        aarch64-unknown-linux-musl) need qemu-aarch64 && [ "$(uname -m)" != aarch64 ] && set -- "$1" qemu-aarch64 "${@:2}" ;;
        *-windows-gnu) need wine && set -- "$1" env WINEDEBUG=-all wine "${@:2}" ;;
    esac
    "${@:2}"
}

# Makes a Debian package of a staged archive. The binary is static, so it depends on nothing.
debian_package() {
    need dpkg-deb || { echo "skipped: the Debian package, because there is no dpkg-deb"; return; }
    local root=$dist/debian stage=$2
    rm -rf "$root"
    install -D "$stage/forerun" "$root/usr/bin/forerun"
    install -D -m 644 "$stage/completions/forerun.bash" "$root/usr/share/bash-completion/completions/forerun"
    install -D -m 644 "$stage/completions/forerun.zsh" "$root/usr/share/zsh/vendor-completions/_forerun"
    install -D -m 644 "$stage/completions/forerun.fish" "$root/usr/share/fish/vendor_completions.d/forerun.fish"
    mkdir -p "$root/usr/share/man/man1" "$root/DEBIAN"
    for page in "$stage"/man/man1/*; do gzip -9n <"$page" >"$root/usr/share/man/man1/$(basename "$page").gz"; done
    install -D -m 644 deploy/forerun.service "$root/usr/share/doc/forerun/examples/forerun.service"
    cat LICENSE-MIT LICENSE-APACHE >"$root/usr/share/doc/forerun/copyright"
    cat >"$root/DEBIAN/control" <<CONTROL
Package: forerun
Version: $version
Architecture: $1
Maintainer: The forerun contributors <forerun@users.noreply.github.com>
Section: science
Priority: optional
Installed-Size: $(du -sk --apparent-size "$root/usr" | cut -f1)
Homepage: $(sed -n 's/^repository = "\(.*\)"/\1/p' Cargo.toml)
Description: run large language models with parallel speculative decoding
 A large language model writes, and a small one guesses ahead: forerun verifies several tokens in one pass, so that
 the text is the large model's, sooner. With a chat, a server with OpenAI's API, and a small built-in pair of models.
CONTROL
    dpkg-deb --root-owner-group --build "$root" "$dist/forerun_${version}_$1.deb"
    rm -rf "$root"
}

for target in "${targets[@]}"; do
    echo "== $target"
    rustup target add "$target" >/dev/null 2>&1 || true
    cargo build --profile dist --locked --package forerun-cli --target "$target" --features "$features"
    name=forerun-$version-$target
    stage=$dist/$name
    rm -rf "$stage"
    mkdir -p "$stage/completions" "$stage/man/man1"
    binary=target/$target/dist/forerun
    [ -e "$binary" ] || binary=$binary.exe
    cp "$binary" README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$stage"
    # The same for all targets, by the first binary that runs here.
    if runs=$(run_on "$target" "$binary" --version 2>/dev/null); then
        echo "$runs runs here"
        for shell in bash elvish fish powershell zsh; do
            run_on "$target" "$binary" completions "$shell" | tr -d '\r' >"$dist/forerun.$shell"
        done
        rm -rf "$dist/man1"
        run_on "$target" "$binary" man --output "$dist/man1" 2>/dev/null
    else
        echo "it does not run on this machine"
    fi
    [ ! -e "$dist/forerun.bash" ] || cp "$dist"/forerun.{bash,elvish,fish,powershell,zsh} "$stage/completions"
    [ ! -e "$dist/man1" ] || cp "$dist"/man1/* "$stage/man/man1"
    python3 scripts/sbom.py "$target" "$features" >"$stage/forerun.cdx.json"
    cp "$stage/forerun.cdx.json" "$dist/$name.cdx.json"
    case "$target" in
        *-windows-*)
            (cd "$dist" && python3 -m zipfile -c "$name.zip" "$name/") ;;
        *)
            # The same bytes for the same source.
            tar --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -C "$dist" -cf - "$name" |
                gzip -9n >"$dist/$name.tar.gz" ;;
    esac
    if [ "$target" = x86_64-unknown-linux-musl ]; then
        if need unshare; then scripts/test_empty_root.sh "$binary"; fi
    fi
    case "$target" in
        x86_64-unknown-linux-musl) debian_package amd64 "$stage" ;;
        aarch64-unknown-linux-musl) debian_package arm64 "$stage" ;;
    esac
    rm -rf "$stage"
done

cd "$dist"
rm -rf man1 forerun.{bash,elvish,fish,powershell,zsh}
sha256sum forerun*.* >SHA256SUMS
cat SHA256SUMS
