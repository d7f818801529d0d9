#!/usr/bin/env bash
# Builds the program as a package would have it: once with counters, which a run of the matrix `training` fills (none
# of its loads is measured elsewhere), and once more with thin link-time optimisation and what they say. Takes
# 16 to 40 minutes. The outcome is target/package/atoll-VERSION-linux-ARCH.tar.zst, and the program itself beside it.
set -euo pipefail
cd "$(dirname "$0")/.."

# Of the toolchain of rust-toolchain.toml: counters have no format of their own.
rustup component add llvm-tools
target=$(rustc -vV | sed -n 's/^host: //p')
merge=$(echo "$(rustc --print sysroot)/lib/rustlib/$target/bin/llvm-profdata")
counts=$PWD/target/dist-counts
rm -rf "$counts"
mkdir -p "$counts"

# With a target named, flags are not for build scripts and macros.
build() {
    RUSTFLAGS="$1" cargo build --profile dist --target "$target" -p atoll -p atoll-lab "${@:2}"
}

echo "building with counters"
CARGO_PROFILE_DIST_LTO=off build "-Cprofile-generate=$counts/raw" --target-dir target/dist-counting
echo "counting"
"target/dist-counting/$target/dist/atoll" bench run training --profile short \
    --out "$counts/records" --dir "$counts/clusters"
"$merge" merge -o "$counts/merged" "$counts/raw"
rm -rf "$counts/raw"
echo "building with what was counted"
build "-Cprofile-use=$counts/merged"

version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
name=atoll-$version-linux-${target%%-*}
rm -rf "target/package/$name"
mkdir -p "target/package/$name"
install -t target/package "target/$target/dist/atoll" "target/$target/dist/atoll-lab"
install -t "target/package/$name" target/package/atoll target/package/atoll-lab
tools/sbom.py --platform "$target" > "target/package/$name/sbom.json"
cp -r README.md LICENSE CHANGELOG.md monitoring "target/package/$name"
tar -C target/package --zstd -cf "target/package/$name.tar.zst" "$name"
rm -rf "target/package/$name"
ls -l "target/package/$name.tar.zst" target/package/atoll target/package/atoll-lab
