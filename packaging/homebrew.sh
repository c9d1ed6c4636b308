#!/bin/sh
# homebrew.sh VERSION SUMS: prints the formula for Homebrew. In the folder SUMS is a `*.sha256` of each
# archive of a release, as `cargo xtask dist` writes it.
set -eu
version=$1 sums=$2
for target in aarch64-apple-darwin x86_64-apple-darwin aarch64-unknown-linux-musl x86_64-unknown-linux-musl; do
    test -s "$sums/lockkit-$version-$target.tar.gz.sha256" || {
        echo "homebrew.sh: there is no checksum of the archive for $target in $sums" >&2
        exit 1
    }
done
sum() {
    line=$(cat "$sums/lockkit-$version-$1.tar.gz.sha256")
    echo "${line%% *}"
}
archive() {
    cat <<END
      url "https://github.com/lockkit/lockkit/releases/download/v$version/lockkit-$version-$1.tar.gz"
      sha256 "$(sum "$1")"
END
}
cat <<END
# Written by packaging/homebrew.sh for each release.
class Lockkit < Formula
  desc "Run commands under distributed locks with fencing tokens"
  homepage "https://github.com/lockkit/lockkit"
  version "$version"
  license any_of: ["MIT", "Apache-2.0"]

  on_macos do
    on_arm do
$(archive aarch64-apple-darwin)
    end
    on_intel do
$(archive x86_64-apple-darwin)
    end
  end

  on_linux do
    on_arm do
$(archive aarch64-unknown-linux-musl)
    end
    on_intel do
$(archive x86_64-unknown-linux-musl)
    end
  end

  def install
    bin.install "lockkit"
    man1.install Dir["man/*.1"]
    bash_completion.install "completions/lockkit.bash" => "lockkit"
    fish_completion.install "completions/lockkit.fish"
    zsh_completion.install "completions/_lockkit"
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/lockkit --version")
    locks = "sqlite:#{testpath}/locks.db"
    assert_equal "held\n", shell_output("#{bin}/lockkit run --url #{locks} demo -- echo held")
  end
end
END
