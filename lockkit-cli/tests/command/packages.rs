//! What `packaging` makes of an unpacked release: a package for Debian, and the formula for Homebrew. The
//! command in it is the one of the tests, without its debug information.

use std::fs;
use std::path::Path;

use crate::stage::{Stage, code, stderr, stdout};

fn script(stage: &Stage, script: &str) -> String {
    let mut shell = stage.program("sh");
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging");
    let shell = shell.args(["-ec", script]).env("PACKAGING", packaging);
    // The command of the tests is large, and what is packed here is thrown away.
    let ran = shell.env("DPKG_DEB_COMPRESSOR_LEVEL", "1").output().unwrap();
    assert_eq!(code(&ran), 0, "{script}: {}{}", stdout(&ran), stderr(&ran));
    stdout(&ran)
}

#[test]
fn the_package_for_debian_satisfies_its_checker_and_has_everything() {
    let stage = Stage::new();
    let version = env!("CARGO_PKG_VERSION");
    script(
        &stage,
        "mkdir -p release/man release/completions
        strip -o release/lockkit \"$LOCKKIT\"; $LOCKKIT man --dir release/man
        $LOCKKIT completions bash >release/completions/lockkit.bash
        $LOCKKIT completions fish >release/completions/lockkit.fish
        $LOCKKIT completions zsh >release/completions/_lockkit
        cp \"$PACKAGING/../lockkit-cli/README.md\" release",
    );
    // This one is not static, as those of a release are.
    let pack = format!("DEPENDS=libc6 $PACKAGING/debian.sh release {version} amd64 out");
    let package = script(&stage, &pack);
    assert_eq!(package.trim(), format!("out/lockkit_{version}_amd64.deb"));
    let found = script(&stage, "lintian --allow-root --fail-on error,warning out/*.deb 2>&1");
    assert_eq!(found, "");
    script(&stage, "dpkg-deb --extract out/*.deb root");
    let pages = fs::read_dir(stage.path("root/usr/share/man/man1")).unwrap().count();
    assert!(pages > 20, "{pages}");
    for file in [
        "bash-completion/completions/lockkit",
        "fish/vendor_completions.d/lockkit.fish",
        "zsh/vendor-completions/_lockkit",
        "doc/lockkit/copyright",
    ] {
        let text = fs::read_to_string(stage.path("root/usr/share").join(file)).unwrap();
        assert!(text.len() > 500, "{file}");
    }
    let locks = "root/usr/bin/lockkit -q run --url sqlite:locks.db demo -- echo held";
    assert_eq!(script(&stage, locks), "held\n");
    assert!(script(&stage, "zcat root/usr/share/man/man1/lockkit-run.1.gz").contains("once"));
}

#[test]
fn the_formula_for_homebrew_is_ruby_and_has_the_sums_of_the_release() {
    let stage = Stage::new();
    let targets = [
        "aarch64-apple-darwin",
        "aarch64-unknown-linux-musl",
        "x86_64-apple-darwin",
        "x86_64-unknown-linux-musl",
    ];
    for target in targets {
        let archive = format!("lockkit-1.2.3-{target}.tar.gz");
        fs::write(stage.path(&archive), target).unwrap();
        script(&stage, &format!("sha256sum {archive} >{archive}.sha256"));
    }
    script(&stage, "$PACKAGING/homebrew.sh 1.2.3 . >lockkit.rb");
    assert_eq!(script(&stage, "ruby -wc lockkit.rb"), "Syntax OK\n");
    // Homebrew's own classes are not here: those that the formula uses, which print what it says.
    let formula = "class Formula
        def self.test = nil
        def self.method_missing(name, *words)
          puts [name, *words].join(' ')
          yield if block_given?
        end
      end
      load './lockkit.rb'";
    fs::write(stage.path("formula.rb"), formula).unwrap();
    let said = script(&stage, "ruby formula.rb");
    for target in targets {
        let sums = fs::read_to_string(stage.path(&format!("lockkit-1.2.3-{target}.tar.gz.sha256")));
        let sum = sums.unwrap().split(' ').next().unwrap().to_owned();
        let url = format!("download/v1.2.3/lockkit-1.2.3-{target}.tar.gz\nsha256 {sum}\n");
        assert!(said.contains(&url), "{target}: {said}");
    }
    script(&stage, "rm *musl*.sha256; ! $PACKAGING/homebrew.sh 1.2.3 . >lockkit.rb");
}
